/* Files of torch.save: zip container, restricted pickle, tensors. All bytes are made here;
 * tests/oracle reads torch's own. */
#include "torch_writer.h"
#include "ctx_fixture.h"
#include "zoo/torch_file.h"
#include "zoo/torch_pickle.h"
#include "base/zip.h"

/* --- good files ------------------------------------------------------------------------------- */

static const float six[6] = {1, 2, 3, 4, 5, 6};

static bytes archive(const bytes *pickle, const void *storage, size_t storage_bytes, bool deflated,
                     bool zip64) {
    zip_writer z = {0};
    zip_add(&z, "net/data.pkl", pickle->data, pickle->n, deflated);
    zip_add(&z, "net/data/0", storage, storage_bytes, deflated);
    zip_add(&z, "net/version", "3\n", 2, false);
    return zip_end(&z, zip64);
}

static bytes one_tensor_pickle(const view *v) {
    bytes p = {0};
    put_string(&p, "\x80\x02");
    pickle_dict(&p);
    pickle_text(&p, "0.weight");
    pickle_tensor(&p, v);
    put_string(&p, "s}");
    pickle_text(&p, "_metadata");
    pickle_dict(&p);
    put_string(&p, "sb.");
    return p;
}

static bytes one_tensor_file(const view *v, const void *storage, size_t storage_bytes) {
    bytes p = one_tensor_pickle(v);
    bytes file = archive(&p, storage, storage_bytes, false, false);
    free(p.data);
    return file;
}

static void check_tensor(const bytes *file, int rank, const size_t *shape, const float *expected) {
    wf_torch_file *torch = NULL;
    assert_ok(ctx, wf_torch_parse(ctx, "t.pt", file->data, file->n, &torch));
    assert_int_equal(wf_torch_count(torch), 1);
    const wf_st_tensor *t = wf_torch_at(torch, 0);
    assert_string_equal(t->name, "0.weight");
    assert_int_equal(t->rank, rank);
    float out[64];
    assert_true(t->count <= 64);
    for (int i = 0; i < rank; i++) assert_int_equal(t->shape[i], shape[i]);
    assert_ok(ctx, wf_st_to_float(ctx, t, out));
    for (size_t i = 0; i < t->count; i++) assert_close(out[i], expected[i], 0);
    wf_torch_close(torch);
}

static void plain_deflated_and_zip64(void **state) {
    (void)state;
    view v = full_view("0", 2, 2, 3);
    bytes p = one_tensor_pickle(&v);
    for (int i = 0; i < 4; i++) {
        bytes file = archive(&p, six, sizeof six, i & 1, i & 2);
        check_tensor(&file, 2, (size_t[]){2, 3}, six);
        free(file.data);
    }
    free(p.data);
}

static void strides_and_offsets(void **state) {
    (void)state;
    struct {
        view v;
        size_t shape[3];
        float expected[6];
    } cases[] = {
        {{"FloatStorage", "0", 6, 0, 2, {3, 2}, {1, 3}}, {3, 2}, {1, 4, 2, 5, 3, 6}}, /* .t() */
        {{"FloatStorage", "0", 6, 1, 2, {2, 2}, {3, 1}}, {2, 2}, {2, 3, 5, 6}},       /* [:, 1:] */
        {{"FloatStorage", "0", 6, 2, 1, {4}, {1}}, {4}, {3, 4, 5, 6}},                /* [2:] */
        {{"FloatStorage", "0", 6, 5, 0, {0}, {0}}, {0}, {6}},                         /* [5] */
        {{"FloatStorage", "0", 6, 0, 3, {1, 3, 2}, {99, 2, 1}}, {1, 3, 2}, {1, 2, 3, 4, 5, 6}},
        {{"FloatStorage", "0", 6, 0, 1, {3}, {0}}, {3}, {1, 1, 1}}, /* expanded, but no larger */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes file = one_tensor_file(&cases[i].v, six, sizeof six);
        check_tensor(&file, cases[i].v.rank, cases[i].shape, cases[i].expected);
        free(file.data);
    }
}

static void other_floats(void **state) {
    (void)state;
    const uint16_t half[2] = {0x3c00, 0xc100}, brain[2] = {0x3f80, 0xc020};
    const double wide[2] = {1, -2.5};
    const float expected[2] = {1, -2.5f};
    struct {
        const char *type;
        const void *data;
        size_t size;
    } cases[] = {
        {"HalfStorage", half, 4}, {"BFloat16Storage", brain, 4}, {"DoubleStorage", wide, 16}};
    for (int i = 0; i < 3; i++) {
        view v = full_view("0", 1, 2, 0);
        v.storage = cases[i].type;
        bytes file = one_tensor_file(&v, cases[i].data, cases[i].size);
        check_tensor(&file, 1, (size_t[]){2}, expected);
        free(file.data);
    }
}

/* Two views of one storage, one of them a parameter, below "state_dict" beside other things. */
static void nested_and_shared(void **state) {
    (void)state;
    view a = full_view("0", 2, 2, 3), b = {"FloatStorage", "0", 6, 3, 1, {3}, {1}};
    bytes p = {0};
    put_string(&p, "\x80\x02}(");
    pickle_text(&p, "epoch");
    put_string(&p, "K\x07");
    pickle_text(&p, "betas");
    put_string(&p, "G?\xec\xcc\xcc\xcc\xcc\xcc\xcdK\1\x86");
    pickle_text(&p, "notes");
    put_string(&p, "](NX\1");
    put_number(&p, 0, 3);
    put_string(&p, "xe");
    pickle_text(&p, "state_dict");
    pickle_dict(&p);
    put_string(&p, "(");
    pickle_text(&p, "w");
    put_string(&p, "ctorch._utils\n_rebuild_parameter\n(");
    pickle_tensor(&p, &a);
    put_string(&p, "\x88");
    pickle_dict(&p);
    put_string(&p, "tR");
    pickle_text(&p, "b");
    pickle_tensor(&p, &b);
    put_string(&p, "uu.");
    bytes file = archive(&p, six, sizeof six, false, true);
    wf_torch_file *torch = NULL;
    assert_ok(ctx, wf_torch_parse(ctx, "t.pt", file.data, file.n, &torch));
    assert_int_equal(wf_torch_count(torch), 2);
    assert_string_equal(wf_torch_at(torch, 1)->name, "b");
    float out[3];
    assert_ok(ctx, wf_st_to_float(ctx, wf_torch_at(torch, 1), out));
    for (int i = 0; i < 3; i++) assert_close(out[i], six[3 + i], 0);
    wf_torch_close(torch);
    free(file.data);
    free(p.data);
}

/* Protocol 4: frames, short text, names on the stack, MEMOIZE. */
static void protocol_4(void **state) {
    (void)state;
    static const char head[] = "\x80\x04\x95\x0b\0\0\0\0\0\0\0\x8c\x0b"
                               "collections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94\x8c\x08"
                               "0.weight\x94";
    view v = full_view("0", 2, 2, 3);
    bytes p = {0};
    put(&p, head, sizeof head - 1);
    pickle_tensor(&p, &v);
    put_string(&p, "s.");
    bytes file = archive(&p, six, sizeof six, false, true);
    check_tensor(&file, 2, (size_t[]){2, 3}, six);
    free(file.data);
    free(p.data);
}

/* --- bad zip files ---------------------------------------------------------------------------- */

/* Places in the file of make_good(): entries net/data.pkl, net/data/0, net/version; no zip64. */
typedef struct layout {
    size_t directory, end;
    size_t central[3]; /* directory entries */
    size_t local[3];   /* local headers */
    size_t storage;    /* contents of net/data/0 */
} layout;

static uint32_t get32(const uint8_t *p) {
    return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
}
static void set(bytes *b, size_t at, uint64_t value, int count) {
    for (int i = 0; i < count; i++) b->data[at + (size_t)i] = (uint8_t)(value >> 8 * i);
}

static bytes make_good(layout *at) {
    view v = full_view("0", 2, 2, 3);
    bytes file = one_tensor_file(&v, six, sizeof six);
    at->end = file.n - 22;
    at->directory = get32(file.data + at->end + 16);
    size_t p = at->directory;
    for (int i = 0; i < 3; i++) {
        at->central[i] = p;
        at->local[i] = get32(file.data + p + 42);
        p += 46 + (size_t)(file.data[p + 28] | file.data[p + 29] << 8);
    }
    at->storage = at->local[1] + 30 + strlen("net/data/0");
    return file;
}

static void cut_all(bytes *b, const layout *at) { (void)at, b->n = 0; }
static void cut_start(bytes *b, const layout *at) { (void)at, b->n = 3; }
static void cut_half(bytes *b, const layout *at) { (void)at, b->n /= 2; }
static void cut_one(bytes *b, const layout *at) { (void)at, b->n -= 1; }
static void one_more(bytes *b, const layout *at) { (void)at, put(b, "x", 1); }
static void end_disk(bytes *b, const layout *at) { set(b, at->end + 4, 1, 2); }
static void end_count_split(bytes *b, const layout *at) { set(b, at->end + 8, 2, 2); }
static void end_count_high(bytes *b, const layout *at) { set(b, at->end + 8, 0x00040004, 4); }
static void end_count_huge(bytes *b, const layout *at) { set(b, at->end + 8, 0xfff0fff0, 4); }
static void end_offset_far(bytes *b, const layout *at) { set(b, at->end + 16, 0x7fffffff, 4); }
static void end_offset_off(bytes *b, const layout *at) {
    set(b, at->end + 16, at->directory - 1, 4);
}
static void end_size_far(bytes *b, const layout *at) { set(b, at->end + 12, 0xfffffff0, 4); }
static void central_magic(bytes *b, const layout *at) { set(b, at->central[1], 0, 4); }
static void encrypted(bytes *b, const layout *at) { set(b, at->central[1] + 8, 1, 2); }
static void lzma(bytes *b, const layout *at) { set(b, at->central[1] + 10, 14, 2); }
static void name_too_long(bytes *b, const layout *at) { set(b, at->central[2] + 28, 0xffff, 2); }
static void extra_too_long(bytes *b, const layout *at) { set(b, at->central[2] + 30, 0xff, 2); }
static void zip64_missing(bytes *b, const layout *at) {
    set(b, at->central[1] + 20, 0xffffffff, 4);
    set(b, at->central[1] + 24, 0xffffffff, 4);
}
static void sizes_differ(bytes *b, const layout *at) { set(b, at->central[1] + 20, 20, 4); }
static void size_far(bytes *b, const layout *at) {
    set(b, at->central[1] + 20, 0x7fffffff, 4);
    set(b, at->central[1] + 24, 0x7fffffff, 4);
}
static void bomb(bytes *b, const layout *at) {
    set(b, at->central[1] + 10, 8, 2);
    set(b, at->central[1] + 24, 0x7fffffff, 4);
}
static void not_deflated(bytes *b, const layout *at) { set(b, at->central[1] + 10, 8, 2); }
static void header_far(bytes *b, const layout *at) { set(b, at->central[1] + 42, 0x7ffffff0, 4); }
static void header_off(bytes *b, const layout *at) {
    set(b, at->central[1] + 42, at->local[1] + 1, 4);
}
static void same_header(bytes *b, const layout *at) {
    memcpy(b->data + at->central[2] + 42, b->data + at->central[1] + 42, 4);
}
static void local_magic(bytes *b, const layout *at) { set(b, at->local[1], 0, 4); }
static void local_name(bytes *b, const layout *at) { b->data[at->local[1] + 34] ^= 1; }
static void local_name_long(bytes *b, const layout *at) { set(b, at->local[2] + 26, 0xffff, 2); }
static void local_extra_long(bytes *b, const layout *at) { set(b, at->local[2] + 28, 0xffff, 2); }
static void overlap(bytes *b, const layout *at) {
    set(b, at->central[1] + 20, 28, 4);
    set(b, at->central[1] + 24, 28, 4);
}
static void storage_flip(bytes *b, const layout *at) { b->data[at->storage + 5] ^= 4; }
static void crc_flip(bytes *b, const layout *at) { b->data[at->central[1] + 16] ^= 1; }
static void rename_pickle(bytes *b, const layout *at) {
    b->data[at->local[0] + 30 + 4] = 'D';
    b->data[at->central[0] + 46 + 4] = 'D';
}
static void rename_storage(bytes *b, const layout *at) {
    b->data[at->local[1] + 30 + 9] = '7';
    b->data[at->central[1] + 46 + 9] = '7';
}
static void legacy(bytes *b, const layout *at) {
    (void)at;
    memcpy(b->data, "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
}

static void bad_zips(void **state) {
    (void)state;
    static const struct {
        const char *name;
        void (*spoil)(bytes *, const layout *);
        const char *words;
    } cases[] = {
        {"empty", cut_all, "no end record"},
        {"three bytes", cut_start, "no end record"},
        {"half", cut_half, "no end record"},
        {"one byte less", cut_one, "no end record"},
        {"one byte more", one_more, "no end record"},
        {"second disk", end_disk, "part of several"},
        {"entries elsewhere", end_count_split, "part of several"},
        {"too many entries", end_count_high, "too small for its entries"},
        {"65520 entries", end_count_huge, "too small for its entries"},
        {"directory beyond the end", end_offset_far, "outside the file"},
        {"directory one byte early", end_offset_off, "fewer entries"},
        {"directory too long", end_size_far, "outside the file"},
        {"directory signature", central_magic, "fewer entries"},
        {"encrypted", encrypted, "encrypted"},
        {"lzma", lzma, "compression"},
        {"name beyond the directory", name_too_long, "runs out of the directory"},
        {"extra beyond the directory", extra_too_long, "runs out of the directory"},
        {"zip64 field missing", zip64_missing, "zip64"},
        {"stored sizes differ", sizes_differ, "two different sizes"},
        {"contents beyond the end", size_far, "run out of the file"},
        {"bomb", bomb, "more than it can"},
        {"deflated, but is not", not_deflated, "does not unpack"},
        {"header beyond the end", header_far, "not where the directory says"},
        {"header one byte late", header_off, "not where the directory says"},
        {"two entries in one place", same_header, "two different names"},
        {"header signature", local_magic, "not where the directory says"},
        {"names differ", local_name, "two different names"},
        {"local name too long", local_name_long, "runs out of the file"},
        {"local extra too long", local_extra_long, "runs out of the file"},
        {"overlap", overlap, "overlap"},
        {"contents changed", storage_flip, "checksum"},
        {"checksum changed", crc_flip, "checksum"},
        {"no data.pkl", rename_pickle, "not written by torch.save"},
        {"no storage", rename_storage, "storage of tensor '0.weight' is missing"},
        {"before torch 1.6", legacy, "before 1.6"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        layout at;
        bytes file = make_good(&at);
        cases[i].spoil(&file, &at);
        /* An exact copy, so that a sanitizer sees one byte too many. */
        uint8_t *exact = malloc(file.n + 1);
        memcpy(exact, file.data, file.n);
        exact = realloc(exact, file.n ? file.n : 1);
        wf_torch_file *torch = NULL;
        wf_status status = wf_torch_parse(ctx, "bad.pt", exact, file.n, &torch);
        if (status != WF_ERR_INPUT || strstr(wf_last_error(ctx), cases[i].words) == NULL ||
            strstr(wf_last_error(ctx), "bad.pt") == NULL)
            fail_msg("%s: status %d, \"%s\", expected \"%s\"", cases[i].name, (int)status,
                     wf_last_error(ctx), cases[i].words);
        assert_null(torch);
        free(exact);
        free(file.data);
    }
}

static void twice_the_same_name(void **state) {
    (void)state;
    zip_writer z = {0};
    zip_add(&z, "net/data.pkl", "}.", 2, false);
    zip_add(&z, "net/data.pkl", "}.", 2, false);
    bytes file = zip_end(&z, false);
    wf_zip zip;
    assert_fails(ctx, wf_zip_open(ctx, "z", file.data, file.n, &zip), WF_ERR_INPUT, "same name");
    free(file.data);
}

/* A zip64 record whose locator or counts lie. */
static void bad_zip64(void **state) {
    (void)state;
    static const struct {
        int from_end, value, width;
        const char *words;
    } cases[] = {
        {22 + 20 - 8, 1 << 30, 4, "zip64 end record"}, /* locator */
        {22 + 20 - 8, 3, 4, "zip64 end record"},
        {22 + 20 - 4, 1, 4, "part of several"},        /* disk of the locator */
        {22 + 20 + 56 - 32, -1, 8, "part of several"}, /* entries in all */
        {22 + 20 + 56 - 40, -1, 8, "outside the file"},
        {22 + 20 + 56 - 48, -1, 8, "outside the file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zip_writer z = {0};
        zip_add(&z, "net/data.pkl", "}.", 2, false);
        bytes file = zip_end(&z, true);
        set(&file, file.n - (size_t)cases[i].from_end, (uint64_t)(int64_t)cases[i].value,
            cases[i].width);
        wf_zip zip;
        assert_fails(ctx, wf_zip_open(ctx, "z", file.data, file.n, &zip), WF_ERR_INPUT,
                     cases[i].words);
        free(file.data);
    }
}

static void other_archives(void **state) {
    (void)state;
    wf_torch_file *torch;
    zip_writer z = {0};
    zip_add(&z, "net/data.pkl", "}.", 2, false);
    zip_add(&z, "net/constants.pkl", ").", 2, false);
    bytes file = zip_end(&z, false);
    assert_fails(ctx, wf_torch_parse(ctx, "t", file.data, file.n, &torch), WF_ERR_INPUT,
                 "TorchScript");
    free(file.data);
    zip_add(&z, "net/data.pkl", "}.", 2, false);
    zip_add(&z, "net/byteorder", "big", 3, false);
    file = zip_end(&z, false);
    assert_fails(ctx, wf_torch_parse(ctx, "t", file.data, file.n, &torch), WF_ERR_INPUT,
                 "byte order");
    free(file.data);
    zip_add(&z, "word/document.xml", "<a/>", 4, false);
    file = zip_end(&z, false);
    assert_fails(ctx, wf_torch_parse(ctx, "t", file.data, file.n, &torch), WF_ERR_INPUT,
                 "not written by torch.save");
    free(file.data);
    zip_add(&z, "a/data.pkl", "}.", 2, false);
    zip_add(&z, "b/data.pkl", "}.", 2, false);
    file = zip_end(&z, false);
    assert_fails(ctx, wf_torch_parse(ctx, "t", file.data, file.n, &torch), WF_ERR_INPUT,
                 "2 entries NAME/data.pkl");
    free(file.data);
    file = zip_end(&z, false);
    assert_fails(ctx, wf_torch_parse(ctx, "t", file.data, file.n, &torch), WF_ERR_INPUT,
                 "0 entries NAME/data.pkl");
    free(file.data);
}

/* --- bad pickles ------------------------------------------------------------------------------ */

#define P(text) text, sizeof(text) - 1

static void bad_pickles(void **state) {
    (void)state;
    static const struct {
        const char *pickle;
        size_t size;
        const char *words;
    } cases[] = {
        {P(""), "ends without STOP"},
        {P("\x80\x02"), "ends without STOP"},
        {P("."), "STOP with 0 values"},
        {P("NN."), "STOP with 2 values"},
        {P("(N."), "STOP with 1 values"},
        {P("N.N"), "bytes after the end"},
        {P("\x80\x01N."), "protocol 1"},
        {P("\x80\x06N."), "protocol 6"},
        {P("\x80"), "ends inside an opcode"},
        {P("\x95\xff\xff\xff\xff\xff\xff\xff\xffN."), "a frame is longer"},
        {P("cos\nsystem\n(X\x02\0\0\0lstR."), "os.system"},
        {P("c__builtin__\neval\n."), "__builtin__.eval"},
        {P("\x8c\x08"
           "builtins\x8c\x04"
           "exec\x93."),
         "builtins.exec"},
        {P("ctorch.nn.modules.container\nSequential\n)\x81."), "container.Sequential"},
        {P("ctorch\nComplexFloatStorage\n."), "cannot be read"},
        {P("ctorch\nFloatStorag\n."), "torch.FloatStorag"},
        {P("ctorch\nFloatStorages\n."), "cannot be read"},
        {P("c\n\n."), "it holds a ."},
        {P("c\x01\xff\x7f\nx\n."), "it holds a ???.x"},
        {P("ccollections\nOrderedDict"), "ends inside a name"},
        {P("ccollections\n"), "ends inside a name"},
        {P("NN\x93."), "a name is no text"},
        {P("i__builtin__\neval\n."), "opcode 0x69"},
        {P("N)\x81."), "no dict"},
        {P("P1\n."), "opcode 0x50"},
        {P("\xff."), "opcode 0xff"},
        {P("\x82\x01."), "opcode 0x82"},
        {P("NNR."), "no function"},
        {P("ccollections\nOrderedDict\nNR."), "no function"},
        {P("ccollections\nOrderedDict\nN\x85R."), "made from arguments"},
        {P("ctorch\nFloatStorage\n)R."), "called as a function"},
        {P("ctorch._utils\n_rebuild_tensor_v2\n)R."), "arguments of a tensor"},
        {P("ctorch._utils\n_rebuild_parameter\n)R."), "arguments of a parameter"},
        {P("R."), "stack is empty"},
        {P("N(R."), "stack is empty"},
        {P("t."), "no mark"},
        {P("e."), "no mark"},
        {P("](Ne("), "ends without STOP"},
        {P("N\x86."), "stack is empty"},
        {P("NNa."), "no list"},
        {P("a."), "stack is empty"},
        {P("Na."), "no list"},
        {P("NNNs."), "no dict"},
        {P("N}Ns."), "no dict"},
        {P("}(Nu."), "a key has no value"},
        {P("]N(Ne."), "no list"},
        {P("NNb."), "no dict"},
        {P("N(b."), "stack is empty"},
        {P("h\0."), "memo entry 0"},
        {P("Nq\5h\4."), "memo entry 4"},
        {P("j\xff\xff\xff\xff."), "memo entry 4294967295"},
        {P("Nr\xff\xff\xff\x7f."), "absurd"},
        {P("q\0."), "stack is empty"},
        {P("X\xff\xff\xff\xffx."), "ends inside an opcode"},
        {P("\x8d\xff\xff\xff\xff\xff\xff\xff\xffx."), "ends inside an opcode"},
        {P("\x8c\x05xx."), "ends inside an opcode"},
        {P("J\0\0"), "ends inside an opcode"},
        {P("G\0\0"), "ends inside an opcode"},
        {P("\x8a\x09"
           "123456789."),
         "too large"},
        {P("NQ."), "persistent id"},
        {P("(X\x07\0\0\0storageNNNNtQ."), "persistent id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wf_arena arena = {0};
        const wf_pickle_value *value = NULL;
        uint8_t *exact = malloc(cases[i].size ? cases[i].size : 1);
        memcpy(exact, cases[i].pickle, cases[i].size);
        wf_status status =
            wf_pickle_read(ctx, "bad.pt", exact, cases[i].size, 32 << 20, &arena, &value);
        if (status != WF_ERR_INPUT || strstr(wf_last_error(ctx), cases[i].words) == NULL)
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, (int)status,
                     wf_last_error(ctx), cases[i].words);
        free(exact);
        wf_arena_free(&arena);
    }
}

static void bad_tensors(void **state) {
    (void)state;
    const int64_t big = INT64_C(1) << 62;
    const struct {
        view v;
        const char *words;
    } cases[] = {
        {{"FloatStorage", "0", 6, 0, 2, {2, 4}, {4, 1}}, "reaches element 7"},
        {{"FloatStorage", "0", 6, 1, 2, {2, 3}, {3, 1}}, "reaches element 6"},
        {{"FloatStorage", "0", 6, 6, 0, {0}, {0}}, "reaches element 6"},
        {{"FloatStorage", "0", 6, -1, 2, {2, 3}, {3, 1}}, "negative"},
        {{"FloatStorage", "0", 6, 0, 2, {-2, -3}, {3, 1}}, "negative"},
        {{"FloatStorage", "0", 6, 5, 1, {3}, {-1}}, "negative"},
        {{"FloatStorage", "0", 6, 0, 2, {big, big}, {1, 1}}, "shape is absurdly large"},
        {{"FloatStorage", "0", 6, 0, 2, {3, 2}, {big, big}},
         "reaches element 13835058055282163712"},
        {{"FloatStorage", "0", 6, big, 2, {3, 2}, {big, big}}, "strides are absurdly large"},
        {{"FloatStorage", "0", 6, 0, 2, {100, 100}, {0, 0}}, "contiguous"},
        {{"FloatStorage", "0", 7, 0, 1, {6}, {1}}, "24 bytes where 7 elements of F32"},
        {{"FloatStorage", "0", 5, 0, 1, {5}, {1}}, "24 bytes where 5 elements of F32"},
        {{"FloatStorage", "0", big, 0, 1, {6}, {1}}, "24 bytes where"},
        {{"FloatStorage", "0", -6, 0, 1, {6}, {1}}, "persistent id"},
        {{"DoubleStorage", "0", 6, 0, 1, {6}, {1}}, "24 bytes where 6 elements of F64"},
        {{"FloatStorage", "1", 6, 0, 1, {6}, {1}}, "is missing"},
        {{"FloatStorage", "../data.pkl", 6, 0, 1, {6}, {1}}, "is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes file = one_tensor_file(&cases[i].v, six, sizeof six);
        wf_torch_file *torch = NULL;
        wf_status status = wf_torch_parse(ctx, "bad.pt", file.data, file.n, &torch);
        if (status != WF_ERR_INPUT || strstr(wf_last_error(ctx), cases[i].words) == NULL)
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, (int)status,
                     wf_last_error(ctx), cases[i].words);
        free(file.data);
    }
}

/* Dictionaries that hold no tensors, or too many candidates. */
static void bad_dictionaries(void **state) {
    (void)state;
    const view v = full_view("0", 2, 2, 3);
    static const struct {
        const char *before, *first, *between, *second, *after, *words;
    } cases[] = {
        {"", "", "N.", "", "", "no dictionary of tensors"},
        {"", "", "}.", "", "", "no tensors in its dictionary"},
        {"}(X\1%%%a}X\1%%%b}(X\1%%%w", "t", "uX\1%%%c}(X\1%%%w", "t", "uu.",
         "2 dictionaries of tensors ('b', 'c')"},
        {"}(X\1%%%w", "t", "X\1%%%e", "", "K\1u.", "'e' stands among the tensors"},
        {"}(X\1%%%w", "t", "X\1%%%w", "t", "u.", "two tensors are named 'w'"},
        {"}(X\1%%%w", "t", "K\1", "t", "u.", "name is no text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes p = {0};
        put_string(&p, cases[i].before);
        if (*cases[i].first) pickle_tensor(&p, &v);
        put_string(&p, cases[i].between);
        if (*cases[i].second) pickle_tensor(&p, &v);
        put_string(&p, cases[i].after);
        for (size_t k = 0; k < p.n; k++)
            if (p.data[k] == '%') p.data[k] = 0; /* the table's stand-in for NUL */
        bytes file = archive(&p, six, sizeof six, false, false);
        wf_torch_file *torch = NULL;
        wf_status status = wf_torch_parse(ctx, "bad.pt", file.data, file.n, &torch);
        if (status != WF_ERR_INPUT || strstr(wf_last_error(ctx), cases[i].words) == NULL)
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, (int)status,
                     wf_last_error(ctx), cases[i].words);
        free(file.data);
        free(p.data);
    }
}

/* A list in itself, a hundred thousand nested lists, a memo that doubles itself: read or refused,
 * in little time and memory. */
static void bombs(void **state) {
    (void)state;
    wf_arena arena = {0};
    const wf_pickle_value *value = NULL;
    /* A tuple of nothing, before there is a stack (for the sanitizers). */
    assert_ok(ctx, wf_pickle_read(ctx, "p", "(t.", 3, 32 << 20, &arena, &value));
    wf_arena_free(&arena);
    assert_ok(ctx, wf_pickle_read(ctx, "p", "]q\0h\0a.", 7, 32 << 20, &arena, &value));
    assert_ptr_equal(value->items[0], value);
    wf_arena_free(&arena);
    enum { deep = 100000 };
    bytes p = {0};
    for (int i = 0; i < deep; i++) put(&p, "]", 1);
    for (int i = 1; i < deep; i++) put(&p, "a", 1);
    put(&p, ".", 1);
    assert_fails(ctx, wf_pickle_read(ctx, "p", p.data, p.n, 1 << 20, &arena, &value), WF_ERR_INPUT,
                 "asks for more than 1 MB");
    wf_arena_free(&arena);
    assert_ok(ctx, wf_pickle_read(ctx, "p", p.data, p.n, 32 << 20, &arena, &value));
    assert_int_equal(value->n, 1);
    wf_arena_free(&arena);
    p.n = 0;
    put_string(&p, "]q");
    put_number(&p, 0, 1);
    for (int i = 0; i < 64; i++) { /* 2^64 leaves, were they ever walked */
        put_string(&p, "h");
        put_number(&p, (uint64_t)i, 1);
        put_string(&p, "h");
        put_number(&p, (uint64_t)i, 1);
        put_string(&p, "\x86q");
        put_number(&p, (uint64_t)i + 1, 1);
        put_string(&p, "0");
    }
    put_string(&p, ".");
    assert_ok(ctx, wf_pickle_read(ctx, "p", p.data, p.n, 32 << 20, &arena, &value));
    wf_arena_free(&arena);
    free(p.data);
}

/* Many strided views of one storage may not multiply its memory without end. */
static void repeated_views(void **state) {
    (void)state;
    enum { n = 600, views = 200 };
    float *storage = calloc(n * n, sizeof *storage);
    view v = {"FloatStorage", "0", n * n, 0, 2, {n, n}, {1, n}};
    bytes p = {0};
    put_string(&p, "}(");
    for (int i = 0; i < views; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        pickle_text(&p, name);
        pickle_tensor(&p, &v);
    }
    put_string(&p, "u.");
    bytes file = archive(&p, storage, n * n * sizeof *storage, true, false);
    wf_torch_file *torch = NULL;
    assert_fails(ctx, wf_torch_parse(ctx, "t", file.data, file.n, &torch), WF_ERR_INPUT,
                 "far more than the file has");
    free(file.data);
    free(p.data);
    free(storage);
}

static void refused(bytes *p, const void *storage, size_t size, const char *words) {
    bytes file = archive(p, storage, size, true, false);
    wf_torch_file *torch = NULL;
    assert_fails(ctx, wf_torch_parse(ctx, "t", file.data, file.n, &torch), WF_ERR_INPUT, words);
    free(file.data);
    free(p->data);
}

/* Small files that ask for much: a name of megabytes, a name used over and over, storages of zeros,
 * dictionaries that hold the same dictionary over and over. */
static void small_files_cost_little(void **state) {
    (void)state;
    enum { much = 64 << 20, many = 3000 };
    char *zeros = calloc(much, 1);
    view v = full_view("0", 1, much / 4, 0);
    bytes p = {0};
    put_string(&p, "}");
    pickle_text(&p, "w");
    pickle_tensor(&p, &v);
    put_string(&p, "s.");
    refused(&p, zeros, much, "far more than the file has");
    p = (bytes){0};
    put_string(&p, "}X");
    put_number(&p, 1 << 20, 4);
    memset(zeros, 'n', 1 << 20);
    put(&p, zeros, 1 << 20);
    v = full_view("0", 1, 6, 0);
    pickle_tensor(&p, &v);
    put_string(&p, "s.");
    refused(&p, six, sizeof six, "a tensor's name has 1048576 bytes");
    p = (bytes){0};
    put_string(&p, "}(");
    for (int i = 0; i < many; i++)
        put_string(&p, "K\1K\2"); /* numbers to numbers, thousands of them */
    put_string(&p, "uq\0010}(");
    for (int i = 0; i < many; i++) put_string(&p, "K\1h\1");
    put_string(&p, "u.");
    refused(&p, six, sizeof six, "over and over");
    free(zeros);
}

/* Every single byte of a good file changed, and every cut: a status or a success, never a fault
 * (for the sanitizers). */
static void every_byte(void **state) {
    (void)state;
    layout at;
    bytes file = make_good(&at);
    for (size_t i = 0; i < file.n; i++) {
        for (int flip = 0; flip < 3; flip++) {
            uint8_t kept = file.data[i];
            file.data[i] = (uint8_t)(flip == 0 ? kept ^ 1 : flip == 1 ? 0xff : kept + 0x40);
            wf_torch_file *torch = NULL;
            if (wf_torch_parse(ctx, "t", file.data, file.n, &torch) == WF_OK) wf_torch_close(torch);
            file.data[i] = kept;
        }
        wf_torch_file *torch = NULL;
        assert_int_equal(wf_torch_parse(ctx, "t", file.data, i, &torch), WF_ERR_INPUT);
    }
    free(file.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_deflated_and_zip64),
        cmocka_unit_test(strides_and_offsets),
        cmocka_unit_test(other_floats),
        cmocka_unit_test(nested_and_shared),
        cmocka_unit_test(protocol_4),
        cmocka_unit_test(bad_zips),
        cmocka_unit_test(twice_the_same_name),
        cmocka_unit_test(bad_zip64),
        cmocka_unit_test(other_archives),
        cmocka_unit_test(bad_pickles),
        cmocka_unit_test(bad_tensors),
        cmocka_unit_test(bad_dictionaries),
        cmocka_unit_test(bombs),
        cmocka_unit_test(repeated_views),
        cmocka_unit_test(small_files_cost_little),
        cmocka_unit_test(every_byte),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
