/* The safetensors reader and writer: what is legal is read exactly, everything else is refused. */
#include "failing_malloc.h"
#include "ctx_fixture.h"
#include "base/safetensors.h"

/* --- writing and reading back ----------------------------------------------------------------- */

static void round_trip(void **state) {
    (void)state;
    float weight[6] = {1, -2, 3.5f, -0.0f, INFINITY, 1e-42f};
    double scale[1] = {0.1};
    uint8_t mask[5] = {1, 2, 3, 4, 5};
    wf_st_tensor tensors[] = {
        {.name = "mask", .dtype = WF_ST_U8, .rank = 1, .shape = {5}, .data = mask},
        {.name = "b.weight", .dtype = WF_ST_F32, .rank = 2, .shape = {2, 3}, .data = weight},
        {.name = "nothing", .dtype = WF_ST_F32, .rank = 3, .shape = {4, 0, 2}},
        {.name = "scale \"\xc3\xa9\"", .dtype = WF_ST_F64, .rank = 0, .data = scale},
    };
    const char *meta[][2] = {{"format", "weft"}, {"", "line one\nline \"two\" \x01\x7f\\/\t"}};
    const char *path = in_folder("round.safetensors");
    assert_ok(ctx, wf_st_write(ctx, path, tensors, 4, meta, 2));
    wf_st_file *file;
    assert_ok(ctx, wf_st_open(ctx, path, &file));
    assert_int_equal(wf_st_count(file), 4);
    assert_string_equal(wf_st_at(file, 0)->name, "scale \"\xc3\xa9\"");
    assert_string_equal(wf_st_at(file, 3)->name, "mask");
    const wf_st_tensor *found = wf_st_find(file, "b.weight");
    assert_non_null(found);
    assert_int_equal(found->rank, 2);
    assert_int_equal(found->shape[0], 2);
    assert_int_equal(found->shape[1], 3);
    assert_int_equal(found->count, 6);
    assert_int_equal(found->bytes, 24);
    assert_memory_equal(found->data, weight, sizeof weight);
    found = wf_st_find(file, "scale \"\xc3\xa9\"");
    assert_int_equal(found->rank, 0);
    assert_int_equal(found->count, 1);
    assert_int_equal((uintptr_t)found->data % 64, 0);
    assert_memory_equal(found->data, scale, sizeof scale);
    assert_memory_equal(wf_st_find(file, "mask")->data, mask, sizeof mask);
    assert_int_equal(wf_st_find(file, "nothing")->bytes, 0);
    assert_null(wf_st_find(file, "absent"));
    assert_int_equal(wf_st_meta_count(file), 3);
    assert_string_equal(wf_st_meta(file, ""), "line one\nline \"two\" \x01\x7f\\/\t");
    assert_string_equal(wf_st_meta(file, "format"), "weft");
    assert_null(wf_st_meta(file, "absent"));
    wf_st_close(file);
}

/* W1: by falling item size, then name; aligned; the same bytes for the same tensors in any
 * order. */
static void writer_is_deterministic(void **state) {
    (void)state;
    static const wf_st_dtype dtypes[] = {WF_ST_BOOL, WF_ST_U8,   WF_ST_I8,  WF_ST_I16, WF_ST_U16,
                                         WF_ST_F16,  WF_ST_BF16, WF_ST_I32, WF_ST_U32, WF_ST_F32,
                                         WF_ST_F64,  WF_ST_I64,  WF_ST_U64};
    enum { n = sizeof dtypes / sizeof *dtypes };
    char names[n][8];
    uint64_t data[3] = {0x0123456789abcdefu, 2, 3};
    wf_st_tensor forwards[n], backwards[n];
    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "t%02d", (i * 5) % n);
        forwards[i] = (wf_st_tensor){
            .name = names[i], .dtype = dtypes[i], .rank = 1, .shape = {3}, .data = data};
        backwards[n - 1 - i] = forwards[i];
    }
    char one[256], two[256], *bytes_one, *bytes_two;
    snprintf(one, sizeof one, "%s", in_folder("one"));
    snprintf(two, sizeof two, "%s", in_folder("two"));
    assert_ok(ctx, wf_st_write(ctx, one, forwards, n, NULL, 0));
    assert_ok(ctx, wf_st_write(ctx, two, backwards, n, NULL, 0));
    size_t size_one, size_two;
    assert_ok(ctx, wf_read_file(ctx, one, 1 << 20, &bytes_one, &size_one));
    assert_ok(ctx, wf_read_file(ctx, two, 1 << 20, &bytes_two, &size_two));
    assert_int_equal(size_one, size_two);
    assert_memory_equal(bytes_one, bytes_two, size_one);
    free(bytes_one);
    free(bytes_two);
    wf_st_file *file;
    assert_ok(ctx, wf_st_open(ctx, one, &file));
    for (size_t i = 0; i < n; i++) {
        const wf_st_tensor *t = wf_st_at(file, i);
        size_t item = wf_st_dtype_size(t->dtype);
        assert_int_equal((uintptr_t)t->data % item, 0);
        assert_memory_equal(t->data, data, 3 * item);
        if (i == 0) continue;
        const wf_st_tensor *before = wf_st_at(file, i - 1);
        size_t item_before = wf_st_dtype_size(before->dtype);
        assert_true(item_before > item ||
                    (item_before == item && strcmp(before->name, t->name) < 0));
    }
    wf_st_close(file);
}

static void writer_refuses(void **state) {
    (void)state;
    float x[2] = {1, 2};
    wf_st_tensor good = {.name = "a", .dtype = WF_ST_F32, .rank = 1, .shape = {2}, .data = x};
    const char *path = in_folder("kept");
    assert_ok(ctx, wf_st_write(ctx, path, &good, 1, NULL, 0));
    wf_st_tensor pair[2] = {good, good};
    assert_fails(ctx, wf_st_write(ctx, path, pair, 2, NULL, 0), WF_ERR_INPUT,
                 "duplicate tensor \"a\"");
    static const char *const bad_names[] = {"", "__metadata__", "\xff", "a\xc3"};
    for (size_t i = 0; i < sizeof bad_names / sizeof *bad_names; i++) {
        pair[1].name = bad_names[i];
        assert_fails(ctx, wf_st_write(ctx, path, pair, 2, NULL, 0), WF_ERR_INPUT,
                     "cannot be the name of a tensor");
    }
    pair[1] = (wf_st_tensor){
        .name = "b", .dtype = WF_ST_F32, .rank = 2, .shape = {SIZE_MAX / 2, 4}, .data = x};
    assert_fails(ctx, wf_st_write(ctx, path, pair, 2, NULL, 0), WF_ERR_SHAPE, "too large");
    const char *twice[][2] = {{"k", "1"}, {"k", "2"}}, *broken[][2] = {{"k", "\xff"}};
    assert_fails(ctx, wf_st_write(ctx, path, &good, 1, twice, 2), WF_ERR_INPUT,
                 "duplicate metadata key \"k\"");
    assert_fails(ctx, wf_st_write(ctx, path, &good, 1, broken, 1), WF_ERR_INPUT, "not UTF-8");
    assert_fails(ctx, wf_st_write(ctx, in_folder("no/such/x"), &good, 1, NULL, 0), WF_ERR_DISK,
                 "No such file");
    path = in_folder("kept");
    wf_st_file *file; /* the earlier file still stands */
    assert_ok(ctx, wf_st_open(ctx, path, &file));
    assert_int_equal(wf_st_count(file), 1);
    wf_st_close(file);
}

/* tests/golden/tensors.safetensors was made by a script with Python's json and struct: the reader
 * reads it, and the writer makes the same bytes. */
static void golden(void **state) {
    (void)state;
    wf_st_file *file;
    assert_ok(ctx, wf_st_open(ctx, "tests/golden/tensors.safetensors", &file));
    assert_int_equal(wf_st_count(file), 6);
    assert_string_equal(wf_st_meta(file, "note"), "caf\xc3\xa9");
    float value[6];
    assert_ok(ctx, wf_st_to_float(ctx, wf_st_find(file, "layers.0.weight"), value));
    for (int i = 0; i < 6; i++) assert_true(value[i] == (float)(i + 1));
    assert_ok(ctx, wf_st_to_float(ctx, wf_st_find(file, "half"), value));
    assert_true(value[0] == 1 && value[1] == 0x1p-24f && value[2] == -65504);
    assert_ok(ctx, wf_st_to_float(ctx, wf_st_find(file, "scale"), value));
    assert_true(value[0] == 0.1f);
    wf_st_tensor tensors[6];
    for (size_t i = 0; i < 6; i++) tensors[5 - i] = *wf_st_at(file, i);
    const char *meta[][2] = {{"format", "weft"}, {"note", "caf\xc3\xa9"}};
    assert_ok(ctx, wf_st_write(ctx, in_folder("golden"), tensors, 6, meta, 2));
    wf_st_close(file);
    /* The same bytes, but for the digest at the end of the metadata and the padding after it. */
    static const char last[] = "\"note\":\"caf\xc3\xa9\"", mark[] = ",\"weft.digest\":\"xxh3:";
    wf_map golden_map, found;
    assert_ok(ctx, wf_map_open(ctx, "tests/golden/tensors.safetensors", &golden_map));
    assert_ok(ctx, wf_map_open(ctx, in_folder("golden"), &found));
    const char *was = (const char *)golden_map.data, *is = (const char *)found.data;
    uint64_t header, length;
    memcpy(&header, was, 8);
    memcpy(&length, is, 8);
    const char *end = memmem(was, 8 + header, last, strlen(last));
    assert_non_null(end);
    size_t before = (size_t)(end - was) + strlen(last), text = strlen(mark) + 33;
    while (was[8 + header - 1] == ' ') header--;
    assert_int_equal((8 + length) % 64, 0);
    assert_in_range(8 + length, 8 + header + text, 8 + header + text + 63);
    assert_memory_equal(is + 8, was + 8, before - 8);
    assert_memory_equal(is + before, mark, strlen(mark));
    assert_memory_equal(is + before + text, was + before, 8 + header - before);
    for (size_t i = header + text; i < length; i++) assert_int_equal(is[8 + i], ' ');
    memcpy(&header, was, 8);
    assert_int_equal(found.size - length, golden_map.size - header);
    assert_memory_equal(is + 8 + length, was + 8 + header, found.size - 8 - length);
    wf_map_close(&golden_map);
    wf_map_close(&found);
    bool known = true;
    assert_ok(ctx, wf_file_verify(ctx, in_folder("golden"), &known));
    assert_true(known);
    assert_ok(ctx, wf_file_verify(ctx, "tests/golden/tensors.safetensors", &known));
    assert_false(known);
}

/* --- digests ---------------------------------------------------------------------------------- */

static void digest_is_xxh3(void **state) {
    (void)state;
    char text[33];
    assert_ok(ctx, wf_write_file(ctx, in_folder("none"), "", 0));
    assert_ok(ctx, wf_file_digest(ctx, in_folder("none"), text));
    assert_string_equal(text, "99aa06d3014798d86001c324468d497f");
    assert_fails(ctx, wf_file_digest(ctx, in_folder("not there"), text), WF_ERR_INPUT, "not there");
    assert_string_equal(text, "");
}

/* Every bit of a small file: refused by the reader or by the digest. */
static void every_flipped_bit_is_seen(void **state) {
    (void)state;
    float values[6] = {1, 2, 3, 4, 5, 6};
    int64_t counts[2] = {7, 8};
    wf_st_tensor tensors[] = {{"a", WF_ST_F32, 2, {2, 3}, 6, 24, values},
                              {"b", WF_ST_I64, 1, {2}, 2, 16, counts}};
    const char *meta[][2] = {{"weft.digest", "xxh3:of another file"}, {"note", "kept"}};
    assert_ok(ctx, wf_st_write(ctx, in_folder("flips"), tensors, 2, meta, 2));
    char *bytes;
    size_t size, by_digest = 0;
    assert_ok(ctx, wf_read_file(ctx, in_folder("flips"), 1 << 20, &bytes, &size));
    for (size_t bit = 0; bit <= 8 * size; bit++) {
        wf_st_file *file;
        bool known = false;
        if (bit < 8 * size) bytes[bit / 8] ^= (char)(1 << bit % 8);
        wf_status status = wf_st_parse(ctx, "flips", bytes, size, &file);
        if (status == WF_OK) {
            status = wf_st_verify(ctx, file, &known);
            by_digest += status != WF_OK;
            /* Not seen: damage to the digest's own name, which makes it a file of another
             * program. */
            if (bit < 8 * size && status == WF_OK && known) fail_msg("bit %zu goes unnoticed", bit);
            if (bit == 8 * size) assert_true(status == WF_OK && known);
            if (bit == 8 * size) assert_string_equal(wf_st_meta(file, "note"), "kept");
            wf_st_close(file);
        }
        if (bit < 8 * size) bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    assert_true(by_digest > 8 * 40);
    free(bytes);
}

/* Piece by piece, in any order: the same bytes. */
static void streams_have_the_same_digest(void **state) {
    (void)state;
    enum { many = 700000 };
    float *values = malloc(many * sizeof *values);
    for (size_t i = 0; i < many; i++) values[i] = (float)i;
    wf_st_tensor tensor = {"a", WF_ST_F32, 1, {many}, many, many * sizeof *values, values};
    const char *meta[][2] = {{"note", "x"}};
    assert_ok(ctx, wf_st_write(ctx, in_folder("at once"), &tensor, 1, meta, 1));
    wf_st_stream *stream;
    assert_ok(ctx, wf_st_stream_open(ctx, in_folder("in pieces"), &tensor, 1, meta, 1, &stream));
    size_t half = tensor.bytes / 2;
    assert_int_equal(wf_st_stream_put(stream, 0, half, (char *)values + half, half), 0);
    assert_int_equal(wf_st_stream_put(stream, 0, 0, values, half), 0);
    assert_ok(ctx, wf_st_stream_commit(ctx, stream));
    char one[33], two[33];
    assert_ok(ctx, wf_file_digest(ctx, in_folder("at once"), one));
    assert_ok(ctx, wf_file_digest(ctx, in_folder("in pieces"), two));
    assert_string_equal(one, two);
    bool known;
    assert_ok(ctx, wf_file_verify(ctx, in_folder("in pieces"), &known));
    assert_true(known);
    free(values);
}

/* --- bad files -------------------------------------------------------------------------------- */

typedef struct image {
    uint8_t *bytes;
    size_t size;
} image;

/* A file with this header and `data` bytes after it. */
static image make_image(const char *header, size_t length, size_t data) {
    image made = {malloc(8 + length + data + 1), 8 + length + data};
    uint64_t size = length;
    memcpy(made.bytes, &size, 8);
    memcpy(made.bytes + 8, header, length);
    for (size_t i = 0; i < data; i++) made.bytes[8 + length + i] = (uint8_t)i;
    return made;
}

#define ENTRY(dtype, shape, offsets)                                                               \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define T(dtype, shape, offsets) "{\"t\":" ENTRY(dtype, shape, offsets) "}"

typedef struct header_case {
    const char *header;
    size_t length; /* 0: strlen */
    size_t data;
    const char *words; /* NULL: legal */
} header_case;

static const header_case header_cases[] = {
    /* legal */
    {"{}", 0, 0, NULL},
    {"{}      ", 0, 0, NULL},
    {"{\"__metadata__\":{}}", 0, 0, NULL},
    {"{\"__metadata__\":{\"a\":\"\\u00e9\\n\"}}", 0, 0, NULL},
    {T("F32", "[2,1]", "[0,8]") "   ", 0, 8, NULL},
    {T("F32", "[]", "[0,4]"), 0, 4, NULL},
    {T("F32", "[0]", "[0,0]"), 0, 0, NULL},
    {T("F32", "[0,9223372036854775807]", "[0,0]"), 0, 0, NULL},
    {T("F64", "[1,1,1,1,1,1,1,1]", "[0,8]"), 0, 8, NULL},
    {"{\"b\":" ENTRY("U8", "[3]", "[2,5]") ",\"a\":" ENTRY("U8", "[2]", "[0,2]") "}", 0, 5, NULL},
    {"{\"a\":" ENTRY("U8", "[2]", "[0,2]") ",\"e\":" ENTRY("F64", "[3,0]", "[2,2]") ",\"b\":" ENTRY(
         "U8", "[1]", "[2,3]") "}",
     0, 3, NULL},
    {"{\"\\u0001\":" ENTRY("I8", "[1]", "[0,1]") "}", 0, 1, NULL},
    /* the JSON */
    {"[]", 0, 0, "does not begin with '{'"},
    {" {}", 0, 0, "does not begin with '{'"},
    {"\xef\xbb\xbf{}", 0, 0, "does not begin with '{'"},
    {"\"a\"", 0, 0, "does not begin with '{'"},
    {"null", 0, 0, "does not begin with '{'"},
    {"{", 1, 0, "holds no JSON object"},
    {"{ ", 0, 0, "not valid"},
    {"{}}", 0, 0, "not valid at byte"},
    {"{}{}", 0, 0, "not valid"},
    {"{}\0", 3, 0, "not valid"},
    {"{}x", 0, 0, "not valid"},
    {"{},", 0, 0, "not valid"},
    {"{'t':1}", 0, 0, "not valid"},
    {"{t:1}", 0, 0, "not valid"},
    {"{\"t\" 1}", 0, 0, "not valid"},
    {"{\"t\":}", 0, 0, "its entry is not an object"},
    {"{\"t\":1,}", 0, 0, "its entry is not an object"},
    {"{\"__metadata__\":{\"a\":\"b\"},}", 0, 0, "not valid"},
    {"{\"__metadata__\":{\"a\":\"b}}", 0, 0, "not valid"},
    {"{\"__metadata__\":{\"a\":\"\n\"}}", 0, 0, "not valid"},
    {"{/* c */}", 0, 0, "not valid"},
    {"{\"t\":NaN}", 0, 0, "its entry is not an object"},
    {T("U8", "[01]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {T("U8", "[1e999]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {"{\"\\u0000\":" ENTRY("I8", "[1]", "[0,1]") "}", 0, 1, "not valid"},
    {"{\"a\0b\":" ENTRY("I8", "[1]", "[0,1]") "}", 55, 1, "not valid"},
    {"{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, 0, "not valid"},
    {"{\"__metadata__\":{\"a\":\"\\ud800\"}}", 0, 0, "not valid"},
    {"{\"__metadata__\":{\"a\":\"\\x\"}}", 0, 0, "not valid"},
    {"{\"__metadata__\":{\"a\":\"\\udc00\"}}", 0, 0, "half of a surrogate pair"},
    {"{\"__metadata__\":{\"a\":\"\\ud83d\\u0041\"}}", 0, 0, "half of a surrogate pair"},
    {"{\"__metadata__\":{\"a\":\"\\ud83d\\n\"}}", 0, 0, "half of a surrogate pair"},
    {"{\"__metadata__\":{\"a\":\"\\u12g4\"}}", 0, 0, "four hexadecimal digits"},
    {"{\"__metadata__\":{\"a\":\"\\u12", 0, 0, "four hexadecimal digits"},
    {"{\"__metadata__\":{\"a\":\"\\", 0, 0, "unknown escape"},
    {"{\"__metadata__\":{\"a\":\"b", 0, 0, "a string without end"},
    {"{\"__metadata__\":{\"a\"", 0, 0, "':' expected"},
    {"{\"__metadata__\":{\"a\":\"b\" \"c\":\"d\"}}", 0, 0, "',' expected"},
    {"{\"__metadata__\":{\"a\":\"\x1f\"}}", 0, 0, "control character"},
    /* UTF-8 */
    {"{\"__metadata__\":{\"a\":\"\xff\"}}", 0, 0, "not UTF-8 at byte 30"},
    {"{\"__metadata__\":{\"a\":\"\xc0\xaf\"}}", 0, 0, "not UTF-8"},
    {"{\"__metadata__\":{\"a\":\"\xed\xa0\x80\"}}", 0, 0, "not UTF-8"},
    {"{\"__metadata__\":{\"a\":\"\xf4\x90\x80\x80\"}}", 0, 0, "not UTF-8"},
    {"{\"__metadata__\":{\"a\":\"\xe2\x82\"}}", 0, 0, "not UTF-8"},
    {"{\"\xe9\":" ENTRY("I8", "[1]", "[0,1]") "}", 0, 1, "not UTF-8"},
    /* duplicates */
    {"{\"t\":" ENTRY("U8", "[1]", "[0,1]") ",\"t\":" ENTRY("U8", "[1]", "[1,2]") "}", 0, 2,
     "duplicate"},
    {"{\"t\":" ENTRY("U8", "[1]", "[0,1]") ",\"\\u0074\":" ENTRY("U8", "[1]", "[1,2]") "}", 0, 2,
     "duplicate"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, 0, "duplicate"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, 0, "duplicate"},
    {"{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 0, 1,
     "duplicate"},
    /* metadata */
    {"{\"__metadata__\":[]}", 0, 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":null}", 0, 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":\"a\"}", 0, 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, 0, "__metadata__ \"a\" is not a string"},
    {"{\"__metadata__\":{\"a\":null}}", 0, 0, "is not a string"},
    {"{\"__metadata__\":{\"a\":true}}", 0, 0, "is not a string"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, 0, "is not a string"},
    {"{\"__metadata__\":{\"a\":[\"b\"]}}", 0, 0, "is not a string"},
    /* entries */
    {"{\"\":" ENTRY("U8", "[1]", "[0,1]") "}", 0, 1, "empty name"},
    {"{\"t\":null}", 0, 0, "tensor \"t\": its entry is not an object"},
    {"{\"t\":[]}", 0, 0, "its entry is not an object"},
    {"{\"t\":5}", 0, 0, "its entry is not an object"},
    {"{\"t\":{}}", 0, 0, "tensor \"t\": dtype is missing"},
    {"{\"t\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 0, 1, "dtype is missing"},
    {"{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 0, 1, "shape is missing"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1]}}", 0, 1, "data_offsets is missing"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 0, 1,
     "unknown field \"x\"; dtype, shape and data_offsets are all there is"},
    {"{\"t\":{\"Dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 0, 1,
     "unknown field \"Dtype\""},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offset\":[0,1]}}", 0, 1,
     "unknown field \"data_offset\""},
    /* dtype */
    {T("F33", "[1]", "[0,4]"), 0, 4, "dtype \"F33\" is not supported; BOOL"},
    {T("f32", "[1]", "[0,4]"), 0, 4, "dtype \"f32\" is not supported"},
    {T("", "[1]", "[0,4]"), 0, 4, "dtype \"\" is not supported"},
    {T("F8_E4M3", "[1]", "[0,1]"), 0, 1, "dtype \"F8_E4M3\" is not supported"},
    {T("F32 ", "[1]", "[0,4]"), 0, 4, "is not supported"},
    {"{\"t\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4, "dtype is not a string"},
    {"{\"t\":{\"dtype\":null,\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4,
     "dtype is not a string"},
    /* shape */
    {T("U8", "1", "[0,1]"), 0, 1, "shape is not a list"},
    {T("U8", "null", "[0,1]"), 0, 1, "shape is not a list"},
    {T("U8", "{}", "[0,1]"), 0, 1, "shape is not a list"},
    {T("U8", "[1.0]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {T("U8", "[1e0]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {T("U8", "[1,-1]", "[0,1]"), 0, 1, "shape[1] is not a whole number"},
    {T("U8", "[\"1\"]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {T("U8", "[true]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {T("U8", "[null]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {T("U8", "[[1]]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 0, 1, "more than 8 dimensions"},
    {T("U8", "[9223372036854775808]", "[0,1]"), 0, 1, "data_offsets give 1"},
    {T("U8", "[18446744073709551616]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {T("U8", "[99999999999999999999999]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {T("U8", "[1,]", "[0,1]"), 0, 1, "shape[1] is not a whole number"},
    {T("U8", "[1 1]", "[0,1]"), 0, 1, "',' expected"},
    {T("U8", "[,1]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {T("U8", "[+1]", "[0,1]"), 0, 1, "shape[0] is not a whole number"},
    {T("U8", "[0x1]", "[0,1]"), 0, 1, "',' expected"},
    {T("U8", "[4294967296,4294967296]", "[0,0]"), 0, 0, "the product of its shape overflows"},
    {T("U8", "[4294967296,4294967297]", "[0,0]"), 0, 0, "the product of its shape overflows"},
    {T("U8", "[9223372036854775807,9223372036854775807,0]", "[0,0]"), 0, 0, "overflows"},
    {T("F64", "[2305843009213693952]", "[0,0]"), 0, 0, "its size in bytes overflows"},
    {T("F32", "[4611686018427387905]", "[0,4]"), 0, 4, "its size in bytes overflows"},
    {T("F32", "[2,3]", "[0,20]"), 0, 20, "its shape needs 24 bytes, data_offsets give 20"},
    {T("F32", "[2]", "[0,9]"), 0, 9, "its shape needs 8 bytes, data_offsets give 9"},
    {T("F32", "[0]", "[0,4]"), 0, 4, "its shape needs 0 bytes, data_offsets give 4"},
    {T("F32", "[]", "[0,0]"), 0, 0, "its shape needs 4 bytes, data_offsets give 0"},
    /* offsets */
    {T("U8", "[1]", "[1]"), 0, 1, "data_offsets is not two whole numbers"},
    {T("U8", "[1]", "[]"), 0, 1, "data_offsets is not two whole numbers"},
    {T("U8", "[1]", "[0,1,2]"), 0, 1, "data_offsets is not two whole numbers"},
    {T("U8", "[1]", "{}"), 0, 1, "data_offsets is not two whole numbers"},
    {T("U8", "[1]", "1"), 0, 1, "data_offsets is not two whole numbers"},
    {T("U8", "[1]", "[0.0,1]"), 0, 1, "data_offsets is not two whole numbers"},
    {T("U8", "[1]", "[0,1e0]"), 0, 1, "data_offsets is not two whole numbers"},
    {T("U8", "[1]", "[-1,0]"), 0, 1, "data_offsets is not two whole numbers"},
    {T("U8", "[1]", "[0,\"1\"]"), 0, 1, "data_offsets is not two whole numbers"},
    {T("U8", "[1]", "[0,18446744073709551615]"), 0, 1, "the file holds 1 bytes of data"},
    {T("U8", "[1]", "[0,18446744073709551616]"), 0, 1, "data_offsets is not two whole numbers"},
    {T("U8", "[1]", "[0,1"), 0, 1, "data_offsets is not two whole numbers"},
    {T("U8", "[1]", "[0,9223372036854775807]"), 0, 1, "the file holds 1 bytes of data"},
    {T("U8", "[1]", "[1,0]"), 0, 1, "its data end at 0, before they begin at 1"},
    {T("U8", "[2]", "[0,2]"), 0, 1, "its data end at 2, but the file holds 1"},
    {T("U8", "[1]", "[5,6]"), 0, 1, "its data end at 6, but the file holds 1"},
    {T("U8", "[0]", "[9,9]"), 0, 1, "its data end at 9"},
    /* places */
    {"{}", 0, 1, "1 bytes after the last tensor belong to none"},
    {"{\"__metadata__\":{\"a\":\"b\"}}", 0, 3, "3 bytes after the last tensor"},
    {T("U8", "[2]", "[0,2]"), 0, 3, "1 bytes after the last tensor"},
    {T("U8", "[0]", "[0,0]"), 0, 3, "3 bytes after the last tensor"},
    {T("U8", "[2]", "[1,3]"), 0, 3, "tensor \"t\": 1 bytes before its data belong to no tensor"},
    {T("U8", "[0]", "[1,1]"), 0, 1, "1 bytes before its data"},
    {"{\"a\":" ENTRY("U8", "[2]", "[0,2]") ",\"b\":" ENTRY("U8", "[2]", "[3,5]") "}", 0, 5,
     "tensor \"b\": 1 bytes before its data"},
    {"{\"a\":" ENTRY("U8", "[2]", "[0,2]") ",\"b\":" ENTRY("U8", "[2]", "[1,3]") "}", 0, 3,
     "tensor \"b\": overlaps \"a\""},
    {"{\"a\":" ENTRY("U8", "[2]", "[0,2]") ",\"b\":" ENTRY("U8", "[2]", "[0,2]") "}", 0, 2,
     "tensor \"b\": overlaps \"a\""},
    {"{\"a\":" ENTRY("U8", "[9]", "[0,9]") ",\"b\":" ENTRY("U8", "[2]", "[3,5]") "}", 0, 9,
     "tensor \"b\": overlaps \"a\""},
    {"{\"a\":" ENTRY("U8", "[4]", "[0,4]") ",\"b\":" ENTRY("U8", "[0]", "[2,2]") "}", 0, 4,
     "tensor \"b\": overlaps \"a\""},
};

static void headers(void **state) {
    (void)state;
    size_t bad = 0;
    for (size_t i = 0; i < sizeof header_cases / sizeof *header_cases; i++) {
        const header_case *c = &header_cases[i];
        image made = make_image(c->header, c->length ? c->length : strlen(c->header), c->data);
        wf_st_file *file = (wf_st_file *)&made;
        wf_status status = wf_st_parse(ctx, "x.st", made.bytes, made.size, &file);
        if (c->words == NULL) {
            if (status != WF_OK) fail_msg("%s: refused: %s", c->header, wf_last_error(ctx));
            wf_st_close(file);
        } else {
            bad++;
            if (status != WF_ERR_INPUT || strstr(wf_last_error(ctx), c->words) == NULL)
                fail_msg("%s: status %d: \"%s\" lacks \"%s\"", c->header, (int)status,
                         wf_last_error(ctx), c->words);
            assert_ptr_equal(strstr(wf_last_error(ctx), "x.st: "), wf_last_error(ctx));
            assert_null(file);
        }
        free(made.bytes);
    }
    assert_true(bad >= 60);
}

/* The header size lies. */
static void header_sizes(void **state) {
    (void)state;
    static const char header[] = T("F32", "[2]", "[0,8]");
    static const struct {
        uint64_t size;
        const char *words;
    } cases[] = {
        {0, "a header of 0 bytes holds no JSON object"},
        {1, "a header of 1 bytes holds no JSON object"},
        {2, "not valid"},
        {sizeof header - 2, "not valid"},
        {sizeof header, "but the file holds 7 bytes of data"}, /* takes a byte of the data */
        {sizeof header + 7, "but the file holds 0 bytes of data"},
        {sizeof header + 8, "but only 62 follow; the file is cut short"},
        {100000000, "but only 62 follow"},
        {100000001, "a header of 100000001 bytes; the format allows 100000000"},
        {0x0a61746164206120, "no safetensors file: it holds text"}, /* " a data\n" */
        {UINT32_MAX, "the format allows"},
        {INT64_MAX, "the format allows"},
        {UINT64_MAX, "the format allows"},
        {UINT64_MAX - 7, "the format allows"},
        {(uint64_t)(sizeof header - 1) << 56, "the format allows"}, /* the other byte order */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        image made = make_image(header, sizeof header - 1, 8);
        memcpy(made.bytes, &cases[i].size, 8);
        wf_st_file *file;
        assert_fails(ctx, wf_st_parse(ctx, "x.st", made.bytes, made.size, &file), WF_ERR_INPUT,
                     cases[i].words);
        free(made.bytes);
    }
}

/* Every escape of JSON, and white space everywhere. */
static void strings_are_decoded(void **state) {
    (void)state;
    static const char header[] =
        "{ \"__metadata__\" :\t{ \"\\u00e9\\\"\\\\\\/\" : "
        "\"\\b\\f\\n\\r\\t\\u20aC\\ud83d\\uDE00/\" }"
        "\r\n, \"a\\u0062\" : { \"shape\" : [ 1 , 2 ] , \"\\u0064type\" : \"\\u00468\\u005f\" , "
        "\"data_offsets\" : [ 0 , 2 ] } }";
    char text[sizeof header];
    memcpy(text, header, sizeof header);
    char *dtype = strstr(text, "\\u00468\\u005f");
    memcpy(dtype, "\\u00558       ", 13); /* "U8" and the white space that is left over */
    dtype[7] = '"';
    dtype[13] = ' ';
    image made = make_image(text, sizeof text - 1, 2);
    wf_st_file *file;
    assert_ok(ctx, wf_st_parse(ctx, "x.st", made.bytes, made.size, &file));
    assert_string_equal(wf_st_meta(file, "\xc3\xa9\"\\/"),
                        "\b\f\n\r\t\xe2\x82\xac\xf0\x9f\x98\x80/");
    assert_non_null(wf_st_find(file, "ab"));
    assert_int_equal(wf_st_find(file, "ab")->shape[1], 2);
    wf_st_close(file);
    free(made.bytes);
}

/* Cut at every byte, and one byte too long. The copy ends where the file does, so that a sanitizer
 * sees any read after it. */
static void every_truncation(void **state) {
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"k\":\"v\"},\"a\":" ENTRY(
        "F32", "[2]", "[0,8]") ",\"b\":" ENTRY("U8", "[3]", "[8,11]") "}    ";
    image whole = make_image(header, sizeof header - 1, 11);
    for (size_t size = 0; size <= whole.size + 1; size++) {
        uint8_t *copy = malloc(size > 0 ? size : 1);
        memcpy(copy, whole.bytes, size);
        wf_st_file *file;
        wf_status status = wf_st_parse(ctx, "x.st", copy, size, &file);
        if ((status == WF_OK) != (size == whole.size)) fail_msg("%zu bytes: %d", size, status);
        wf_st_close(file);
        free(copy);
    }
    free(whole.bytes);
}

/* A header of nothing but brackets, and one with very many tensors. */
static void deep_and_wide(void **state) {
    (void)state;
    enum { depth = 200000, tensors = 20000 };
    char *text = malloc(100 * tensors);
    for (int kind = 0; kind < 2; kind++) {
        size_t used = (size_t)sprintf(text, "{\"t\":");
        for (int i = 0; i < depth; i++) text[used++] = kind == 0 ? '[' : "{\"a\":"[i % 5];
        image made = make_image(text, used, 0);
        wf_st_file *file;
        assert_fails(ctx, wf_st_parse(ctx, "x.st", made.bytes, made.size, &file), WF_ERR_INPUT,
                     kind == 0 ? "its entry is not an object" : "unknown field \"a\"");
        free(made.bytes);
    }
    size_t used = 0;
    for (int i = tensors - 1; i >= 0; i--)
        used += (size_t)sprintf(
            text + used, "%c\"%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
            used == 0 ? '{' : ',', i, i, i + 1);
    text[used++] = '}';
    image made = make_image(text, used, tensors);
    wf_st_file *file;
    assert_ok(ctx, wf_st_parse(ctx, "x.st", made.bytes, made.size, &file));
    assert_int_equal(wf_st_count(file), tensors);
    assert_string_equal(wf_st_at(file, 12345)->name, "12345");
    assert_int_equal(*(const uint8_t *)wf_st_at(file, 12345)->data, 12345 % 256);
    wf_st_close(file);
    free(made.bytes);
    free(text);
}

static void bad_paths(void **state) {
    (void)state;
    wf_st_file *file;
    assert_fails(ctx, wf_st_open(ctx, in_folder("absent"), &file), WF_ERR_INPUT, "No such file");
    assert_fails(ctx, wf_st_open(ctx, folder, &file), WF_ERR_INPUT, "is a folder");
    assert_fails(ctx, wf_st_open(ctx, "/dev/null", &file), WF_ERR_INPUT, "a pipe or device");
    assert_ok(ctx, wf_write_file(ctx, in_folder("empty"), "", 0));
    assert_fails(ctx, wf_st_open(ctx, in_folder("empty"), &file), WF_ERR_INPUT,
                 "0 bytes are too few");
    assert_null(file);
}

/* --- conversion ------------------------------------------------------------------------------- */

static void halves(void **state) {
    (void)state;
    enum { n = 65536 };
    uint8_t *bytes = malloc(2 * n + 1);
    float *half = malloc(n * sizeof *half), *brain = malloc(n * sizeof *brain);
    for (uint32_t i = 0; i < n; i++) {
        bytes[2 * i + 1] = (uint8_t)i; /* unaligned on purpose */
        bytes[2 * i + 2] = (uint8_t)(i >> 8);
    }
    wf_st_tensor tensor = {
        .name = "h", .dtype = WF_ST_F16, .count = n, .bytes = 2 * n, .data = bytes + 1};
    assert_ok(ctx, wf_st_to_float(ctx, &tensor, half));
    tensor.dtype = WF_ST_BF16;
    assert_ok(ctx, wf_st_to_float(ctx, &tensor, brain));
    for (int i = 0; i < n; i++) {
        int sign = i >= 32768 ? -1 : 1;
        int exponent = i >> 10 & 31, mantissa = i & 1023;
        double expected =
            exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
        if (exponent < 31) assert_true(half[i] == sign * expected);
        else if (mantissa == 0) assert_true(half[i] == sign * INFINITY);
        else assert_true(isnan(half[i]));
        assert_true(exponent == 31 || !signbit(half[i]) == (sign > 0));
        exponent = i >> 7 & 255, mantissa = i & 127;
        expected = exponent == 0 ? ldexp(mantissa, -133) : ldexp(128 + mantissa, exponent - 134);
        if (exponent < 255) assert_true(brain[i] == sign * expected);
        else if (mantissa == 0) assert_true(brain[i] == sign * INFINITY);
        else assert_true(isnan(brain[i]));
    }
    free(bytes);
    free(half);
    free(brain);
}

static void wide_floats(void **state) {
    (void)state;
    double wide[] = {0.1, -1e300, 1e-300, NAN, -INFINITY, 16777217};
    float narrow[] = {1.5f, -0.0f, NAN}, out[6];
    uint8_t bytes[1 + sizeof wide];
    memcpy(bytes + 1, wide, sizeof wide);
    wf_st_tensor tensor = {
        .name = "d", .dtype = WF_ST_F64, .count = 6, .bytes = sizeof wide, .data = bytes + 1};
    assert_ok(ctx, wf_st_to_float(ctx, &tensor, out));
    assert_true(out[0] == 0.1f && out[1] == -INFINITY && out[2] == 0 && isnan(out[3]));
    assert_true(out[4] == -INFINITY && out[5] == 16777216);
    memcpy(bytes + 1, narrow, sizeof narrow);
    tensor = (wf_st_tensor){
        .name = "f", .dtype = WF_ST_F32, .count = 3, .bytes = sizeof narrow, .data = bytes + 1};
    assert_ok(ctx, wf_st_to_float(ctx, &tensor, out));
    assert_memory_equal(out, narrow, sizeof narrow);
    tensor.dtype = WF_ST_I32;
    assert_fails(ctx, wf_st_to_float(ctx, &tensor, out), WF_ERR_INPUT,
                 "tensor \"f\" holds I32; F16, BF16, F32 or F64 is needed");
}

/* --- memory ----------------------------------------------------------------------------------- */

static wf_status write_and_read(wf_ctx *with, void *path) {
    float x[4] = {1, 2, 3, 4};
    wf_st_tensor tensors[] = {
        {.name = "a", .dtype = WF_ST_F32, .rank = 2, .shape = {2, 2}, .data = x},
        {.name = "b", .dtype = WF_ST_F64, .rank = 1, .shape = {2}, .data = x},
    };
    const char *meta[][2] = {{"k", "v"}, {"l", "w"}};
    WF_TRY(wf_st_write(with, path, tensors, 2, meta, 2));
    wf_st_file *file;
    WF_TRY(wf_st_open(with, path, &file));
    bool same = wf_st_count(file) == 2 && strcmp(wf_st_meta(file, "l"), "w") == 0;
    wf_st_close(file);
    return same ? WF_OK : WF_ERR_FAILED;
}

static void survives_lack_of_memory(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder("memory"));
    fail_every_allocation(ctx, "safetensors", write_and_read, path);
    char command[300];
    snprintf(command, sizeof command, "test -z \"$(ls -A %s | grep tmp)\"", folder);
    assert_int_equal(system(command), 0); /* no sibling is left */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(golden),
        cmocka_unit_test(digest_is_xxh3),
        cmocka_unit_test(every_flipped_bit_is_seen),
        cmocka_unit_test(streams_have_the_same_digest),
        cmocka_unit_test(strings_are_decoded),
        cmocka_unit_test(writer_is_deterministic),
        cmocka_unit_test(writer_refuses),
        cmocka_unit_test(headers),
        cmocka_unit_test(header_sizes),
        cmocka_unit_test(every_truncation),
        cmocka_unit_test(deep_and_wide),
        cmocka_unit_test(bad_paths),
        cmocka_unit_test(halves),
        cmocka_unit_test(wide_floats),
        cmocka_unit_test(survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
