/* torch_pickle: see the header. A stack machine over borrowed bytes: values live in the caller's
 * arena, text points into the pickle, stack and memo are arrays. Every allocation is
 * first compared with the budget, because one byte of input can ask for hundreds. Errors name the
 * byte. */
#include "zoo/torch_pickle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { slab_values = 128 };

/* The names that may stand in a GLOBAL, and what they stand for. */
typedef enum global {
    global_ordered_dict,
    global_rebuild_tensor,
    global_rebuild_parameter,
    global_storage /* global_storage + dtype */
} global;

static const struct {
    const char *module, *name;
    int global;
} known_globals[] = {
    {"collections", "OrderedDict", global_ordered_dict},
    /* Hyperparameters in checkpoints of Lightning: dictionaries, too. */
    {"lightning.fabric.utilities.data", "AttributeDict", global_ordered_dict},
    {"lightning_fabric.utilities.data", "AttributeDict", global_ordered_dict},
    {"lightning.pytorch.utilities.parsing", "AttributeDict", global_ordered_dict},
    {"pytorch_lightning.utilities.parsing", "AttributeDict", global_ordered_dict},
    {"torch._utils", "_rebuild_tensor_v2", global_rebuild_tensor},
    {"torch._utils", "_rebuild_parameter", global_rebuild_parameter},
    {"torch", "FloatStorage", global_storage + WF_ST_F32},
    {"torch", "DoubleStorage", global_storage + WF_ST_F64},
    {"torch", "HalfStorage", global_storage + WF_ST_F16},
    {"torch", "BFloat16Storage", global_storage + WF_ST_BF16},
    /* Read so that the importer can name such tensors; it takes none of them. */
    {"torch", "LongStorage", global_storage + WF_ST_I64},
    {"torch", "IntStorage", global_storage + WF_ST_I32},
    {"torch", "ShortStorage", global_storage + WF_ST_I16},
    {"torch", "CharStorage", global_storage + WF_ST_I8},
    {"torch", "ByteStorage", global_storage + WF_ST_U8},
    {"torch", "BoolStorage", global_storage + WF_ST_BOOL},
};

typedef wf_pickle_value value;

typedef struct machine {
    wf_ctx *ctx;
    const char *label;
    const uint8_t *bytes;
    size_t size, at, opcode_at;
    wf_arena *arena;
    size_t budget, spent; /* bytes */
    value *slab;          /* values not yet handed out */
    size_t slab_left;
    value **stack;
    size_t n_stack, stack_capacity;
    size_t *marks; /* heights of the stack */
    size_t n_marks, marks_capacity;
    value **memo;
    size_t n_memo, memo_capacity;
} machine;

__attribute__((format(printf, 2, 3))) static wf_status refuse(machine *m, const char *format, ...) {
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return wf_fail(m->ctx, WF_ERR_INPUT, "%s: data.pkl, byte %zu: %s", m->label, m->opcode_at,
                   sentence);
}

static wf_status out_of_memory(machine *m) {
    return wf_fail(m->ctx, WF_ERR_MEMORY, "%s: out of memory while reading data.pkl", m->label);
}

/* --- memory ----------------------------------------------------------------------------------- */

static wf_status spend(machine *m, size_t bytes) {
    if (bytes > m->budget - m->spent)
        return refuse(m,
                      "it asks for more than %zu MB of memory, which no dictionary of tensors in a "
                      "file of this size needs; save model.state_dict() alone",
                      m->budget >> 20);
    m->spent += bytes;
    return WF_OK;
}

/* From the arena, which also takes room for alignment. */
static wf_status new_memory(machine *m, size_t bytes, void *out_pointer) {
    size_t before = m->arena->taken;
    WF_TRY(spend(m, bytes));
    void *memory = wf_arena_zalloc(m->arena, bytes);
    if (memory == NULL) return out_of_memory(m);
    memcpy(out_pointer, &memory, sizeof memory);
    return spend(m, m->arena->taken - before - bytes);
}

static wf_status new_value(machine *m, wf_pickle_kind kind, value **out) {
    if (m->slab_left == 0) {
        WF_TRY(new_memory(m, slab_values * sizeof *m->slab, &m->slab));
        m->slab_left = slab_values;
    }
    *out = m->slab++;
    m->slab_left--;
    (*out)->kind = kind;
    return WF_OK;
}

static wf_status grow(machine *m, void **array, size_t *capacity, size_t wanted, size_t item) {
    if (wanted <= *capacity) return WF_OK;
    size_t larger = *capacity * 2 > 64 ? *capacity * 2 : 64;
    if (larger < wanted) larger = wanted;
    WF_TRY(spend(m, (larger - *capacity) * item));
    void *moved = realloc(*array, larger * item);
    if (moved == NULL) return out_of_memory(m);
    memset((char *)moved + *capacity * item, 0, (larger - *capacity) * item);
    *array = moved;
    *capacity = larger;
    return WF_OK;
}

static wf_status reserve_items(machine *m, value *container, size_t more) {
    size_t wanted = container->n + more;
    if (wanted <= container->capacity) return WF_OK;
    size_t larger = container->capacity * 2 > wanted ? container->capacity * 2 : wanted;
    value **moved;
    WF_TRY(new_memory(m, larger * sizeof *moved, &moved));
    if (container->n > 0) memcpy(moved, container->items, container->n * sizeof *moved);
    container->items = moved;
    container->capacity = larger;
    return WF_OK;
}

/* --- input ------------------------------------------------------------------------------------ */

static wf_status take(machine *m, size_t count, const uint8_t **out) {
    if (count > m->size - m->at) return refuse(m, "the pickle ends inside an opcode");
    *out = m->bytes + m->at;
    m->at += count;
    return WF_OK;
}

static wf_status take_number(machine *m, int count, uint64_t *out) {
    const uint8_t *p = NULL;
    WF_TRY(take(m, (size_t)count, &p));
    *out = 0;
    for (int i = 0; i < count; i++) *out |= (uint64_t)p[i] << 8 * i;
    return WF_OK;
}

/* --- stack ------------------------------------------------------------------------------------ */

static wf_status push(machine *m, value *item) {
    WF_TRY(grow(m, (void **)&m->stack, &m->stack_capacity, m->n_stack + 1, sizeof *m->stack));
    m->stack[m->n_stack++] = item;
    return WF_OK;
}

static wf_status pop(machine *m, value **out) {
    size_t floor = m->n_marks > 0 ? m->marks[m->n_marks - 1] : 0;
    if (m->n_stack <= floor) return refuse(m, "the stack is empty");
    *out = m->stack[--m->n_stack];
    return WF_OK;
}

/* The items above the last mark, which goes. They stay valid until the next push. */
static wf_status pop_mark(machine *m, value ***items, size_t *count) {
    if (m->n_marks == 0) return refuse(m, "there is no mark on the stack");
    size_t height = m->marks[--m->n_marks];
    *count = m->n_stack - height;
    *items = *count > 0 ? m->stack + height : NULL;
    m->n_stack = height;
    return WF_OK;
}

static wf_status push_new(machine *m, wf_pickle_kind kind, value **out) {
    WF_TRY(new_value(m, kind, out));
    return push(m, *out);
}

static wf_status push_integer(machine *m, wf_pickle_kind kind, int64_t integer) {
    value *v = NULL;
    WF_TRY(push_new(m, kind, &v));
    v->integer = integer;
    return WF_OK;
}

static wf_status push_text(machine *m, wf_pickle_kind kind, int length_bytes) {
    uint64_t length = 0;
    const uint8_t *text = NULL;
    value *v = NULL;
    WF_TRY(take_number(m, length_bytes, &length));
    WF_TRY(take(m, length, &text));
    WF_TRY(push_new(m, kind, &v));
    v->text = (const char *)text;
    v->n = length;
    return WF_OK;
}

static wf_status push_long(machine *m) {
    uint64_t length = 0, bits = 0;
    WF_TRY(take_number(m, 1, &length));
    if (length > 8) return refuse(m, "a whole number of %u bytes is too large", (unsigned)length);
    WF_TRY(take_number(m, (int)length, &bits));
    if (length > 0 && length < 8 && bits >> (8 * length - 1)) bits |= ~UINT64_C(0) << 8 * length;
    return push_integer(m, WF_PICKLE_INT, (int64_t)bits);
}

static wf_status push_float(machine *m) {
    const uint8_t *p = NULL;
    value *v = NULL;
    WF_TRY(take(m, 8, &p));
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) bits = bits << 8 | p[i]; /* the one big-endian opcode */
    WF_TRY(push_new(m, WF_PICKLE_FLOAT, &v));
    memcpy(&v->real, &bits, sizeof bits);
    return WF_OK;
}

/* A tuple of the `count` values in `items`, which may be the top of the stack just taken off. */
static wf_status push_tuple(machine *m, value **items, size_t count) {
    value *tuple = NULL;
    WF_TRY(new_value(m, WF_PICKLE_TUPLE, &tuple));
    WF_TRY(reserve_items(m, tuple, count));
    if (count > 0) memcpy(tuple->items, items, count * sizeof *items);
    tuple->n = count;
    return push(m, tuple);
}

static wf_status push_short_tuple(machine *m, int count) {
    value *items[3];
    for (int i = count; i-- > 0;) WF_TRY(pop(m, &items[i]));
    return push_tuple(m, items, (size_t)count);
}

/* --- containers ------------------------------------------------------------------------------- */

static wf_status extend(machine *m, wf_pickle_kind kind, value **items, size_t count) {
    size_t floor = m->n_marks > 0 ? m->marks[m->n_marks - 1] : 0;
    if (m->n_stack <= floor || m->stack[m->n_stack - 1]->kind != kind)
        return refuse(m, "items are added to something that is no %s",
                      kind == WF_PICKLE_DICT ? "dict" : "list");
    if (kind == WF_PICKLE_DICT && count % 2 != 0) return refuse(m, "a key has no value");
    value *container = m->stack[m->n_stack - 1];
    WF_TRY(reserve_items(m, container, count));
    if (count > 0) memcpy(container->items + container->n, items, count * sizeof *items);
    container->n += count;
    return WF_OK;
}

static wf_status extend_by(machine *m, wf_pickle_kind kind, size_t count) {
    value *items[2];
    for (size_t i = count; i-- > 0;) WF_TRY(pop(m, &items[i]));
    return extend(m, kind, items, count);
}

static wf_status extend_from_mark(machine *m, wf_pickle_kind kind) {
    value **items = NULL;
    size_t count = 0;
    WF_TRY(pop_mark(m, &items, &count));
    return extend(m, kind, items, count);
}

/* --- memo ------------------------------------------------------------------------------------- */

static wf_status memo_put(machine *m, uint64_t index) {
    value *top;
    /* Writers number the memo from 0, at least one byte each. */
    if (index >= m->size) return refuse(m, "memo index %llu is absurd", (unsigned long long)index);
    WF_TRY(pop(m, &top));
    m->n_stack++;
    WF_TRY(grow(m, (void **)&m->memo, &m->memo_capacity, index + 1, sizeof *m->memo));
    m->memo[index] = top;
    if (index >= m->n_memo) m->n_memo = index + 1;
    return WF_OK;
}

static wf_status memo_get(machine *m, int index_bytes) {
    uint64_t index = 0;
    WF_TRY(take_number(m, index_bytes, &index));
    if (index >= m->n_memo || m->memo[index] == NULL)
        return refuse(m, "memo entry %llu does not exist", (unsigned long long)index);
    return push(m, m->memo[index]);
}

static wf_status memo_put_at(machine *m, int index_bytes) {
    uint64_t index = 0;
    WF_TRY(take_number(m, index_bytes, &index));
    return memo_put(m, index);
}

/* --- names ------------------------------------------------------------------------------------ */

static bool same_text(const char *text, size_t length, const char *word) {
    return strlen(word) == length && memcmp(text, word, length) == 0;
}

/* Text from the file, fit for a sentence: short, and printable ASCII alone. */
static const char *shown(const char *text, size_t length, char buffer[96]) {
    size_t count = length < 92 ? length : 92;
    for (size_t i = 0; i < count; i++) buffer[i] = text[i] >= 32 && text[i] < 127 ? text[i] : '?';
    memcpy(buffer + count, length > count ? "..." : "", length > count ? 4 : 1);
    return buffer;
}

static wf_status push_global(machine *m, const char *module, size_t module_length, const char *name,
                             size_t name_length) {
    for (size_t i = 0; i < sizeof known_globals / sizeof *known_globals; i++)
        if (same_text(module, module_length, known_globals[i].module) &&
            same_text(name, name_length, known_globals[i].name))
            return push_integer(m, WF_PICKLE_GLOBAL, known_globals[i].global);
    char a[96], b[96];
    shown(module, module_length, a);
    shown(name, name_length, b);
    if (strcmp(a, "torch") == 0 && strstr(b, "Storage") != NULL)
        return refuse(m, "tensors of type %s.%s cannot be read; save float tensors", a, b);
    return refuse(m,
                  "it holds a %s.%s, and only plain tensors are read (no code is ever run); save "
                  "the weights alone: torch.save(model.state_dict(), path)",
                  a, b);
}

static wf_status take_line(machine *m, const char **text, size_t *length) {
    const uint8_t *start = m->bytes + m->at;
    const uint8_t *end = memchr(start, '\n', m->size - m->at);
    if (end == NULL) return refuse(m, "the pickle ends inside a name");
    *text = (const char *)start;
    *length = (size_t)(end - start);
    m->at += *length + 1;
    return WF_OK;
}

static wf_status global_in_line(machine *m) {
    const char *module = NULL, *name = NULL;
    size_t module_length = 0, name_length = 0;
    WF_TRY(take_line(m, &module, &module_length));
    WF_TRY(take_line(m, &name, &name_length));
    return push_global(m, module, module_length, name, name_length);
}

static wf_status global_on_stack(machine *m) {
    value *module = NULL, *name = NULL;
    WF_TRY(pop(m, &name));
    WF_TRY(pop(m, &module));
    if (module->kind != WF_PICKLE_TEXT || name->kind != WF_PICKLE_TEXT)
        return refuse(m, "a name is no text");
    return push_global(m, module->text, module->n, name->text, name->n);
}

/* --- tensors ---------------------------------------------------------------------------------- */

static bool natural(const value *v, size_t *out) {
    if (v->kind != WF_PICKLE_INT || v->integer < 0) return false;
    *out = (size_t)v->integer;
    return true;
}

/* ("storage", torch.FloatStorage, key, device, elements) */
static wf_status persistent(machine *m) {
    value *id = NULL, *v = NULL;
    WF_TRY(pop(m, &id));
    wf_pickle_storage storage;
    if (id->kind != WF_PICKLE_TUPLE || id->n != 5 || id->items[0]->kind != WF_PICKLE_TEXT ||
        !same_text(id->items[0]->text, id->items[0]->n, "storage") ||
        id->items[1]->kind != WF_PICKLE_GLOBAL || id->items[1]->integer < global_storage ||
        id->items[2]->kind != WF_PICKLE_TEXT || !natural(id->items[4], &storage.count))
        return refuse(m, "a persistent id does not describe a storage");
    storage.dtype = (wf_st_dtype)(id->items[1]->integer - global_storage);
    storage.key = id->items[2]->text;
    storage.key_length = id->items[2]->n;
    wf_pickle_storage *kept;
    WF_TRY(new_memory(m, sizeof *kept, &kept));
    *kept = storage;
    WF_TRY(push_new(m, WF_PICKLE_STORAGE, &v));
    v->storage = kept;
    return WF_OK;
}

static bool read_extents(const value *tuple, int rank, size_t out[WF_ST_MAX_RANK]) {
    for (int i = 0; i < rank; i++)
        if (!natural(tuple->items[i], &out[i])) return false;
    return true;
}

/* Does the view stay inside its storage? Sets the element count. */
static wf_status check_view(machine *m, wf_pickle_tensor *t) {
    size_t last = t->offset;
    t->count = 1;
    for (int i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(t->count, t->shape[i], &t->count))
            return refuse(m, "a tensor's shape is absurdly large");
    if (t->count == 0) return WF_OK;
    for (int i = 0; i < t->rank; i++) {
        size_t reach;
        if (__builtin_mul_overflow(t->shape[i] - 1, t->stride[i], &reach) ||
            __builtin_add_overflow(last, reach, &last))
            return refuse(m, "a tensor's strides are absurdly large");
    }
    if (last >= t->storage->count)
        return refuse(m, "a tensor reaches element %zu of a storage of %zu", last,
                      t->storage->count);
    if (t->count > t->storage->count)
        return refuse(m,
                      "a tensor of %zu elements repeats a storage of %zu; save it with "
                      ".contiguous()",
                      t->count, t->storage->count);
    return WF_OK;
}

/* (storage, offset, shape, strides, requires_grad, hooks[, metadata]) */
static wf_status rebuild_tensor(machine *m, const value *args) {
    if (args->n < 6 || args->n > 7 || args->items[0]->kind != WF_PICKLE_STORAGE ||
        args->items[2]->kind != WF_PICKLE_TUPLE || args->items[3]->kind != WF_PICKLE_TUPLE)
        return refuse(m, "the arguments of a tensor are wrong");
    const value *shape = args->items[2], *stride = args->items[3];
    if (shape->n > WF_ST_MAX_RANK || shape->n != stride->n)
        return refuse(m, "a tensor has %zu dimensions and %zu strides", shape->n, stride->n);
    wf_pickle_tensor *t;
    WF_TRY(new_memory(m, sizeof *t, &t));
    t->storage = args->items[0]->storage;
    t->rank = (int)shape->n;
    if (!natural(args->items[1], &t->offset) || !read_extents(shape, t->rank, t->shape) ||
        !read_extents(stride, t->rank, t->stride))
        return refuse(m, "a tensor's offset, shape or strides are negative or no whole numbers");
    WF_TRY(check_view(m, t));
    value *v = NULL;
    WF_TRY(push_new(m, WF_PICKLE_TENSOR, &v));
    v->tensor = t;
    return WF_OK;
}

static wf_status reduce(machine *m) {
    value *args = NULL, *function = NULL, *v = NULL;
    WF_TRY(pop(m, &args));
    WF_TRY(pop(m, &function));
    if (function->kind != WF_PICKLE_GLOBAL || args->kind != WF_PICKLE_TUPLE)
        return refuse(m, "something is called that is no function");
    switch (function->integer) {
    case global_ordered_dict:
        if (args->n != 0) return refuse(m, "an OrderedDict is made from arguments");
        return push_new(m, WF_PICKLE_DICT, &v);
    case global_rebuild_tensor: return rebuild_tensor(m, args);
    case global_rebuild_parameter: /* (tensor, requires_grad, hooks) */
        if (args->n != 3 || args->items[0]->kind != WF_PICKLE_TENSOR)
            return refuse(m, "the arguments of a parameter are wrong");
        return push(m, args->items[0]);
    default: return refuse(m, "a storage is called as a function");
    }
}

/* An object of a class without arguments: a dictionary. */
static wf_status new_object(machine *m) {
    value *args = NULL, *class = NULL, *v = NULL;
    WF_TRY(pop(m, &args));
    WF_TRY(pop(m, &class));
    if (class->kind != WF_PICKLE_GLOBAL || class->integer != global_ordered_dict ||
        args->kind != WF_PICKLE_TUPLE || args->n != 0)
        return refuse(m, "an object is made that is no dict");
    return push_new(m, WF_PICKLE_DICT, &v);
}

/* An OrderedDict's attributes (_metadata of a state_dict) say nothing about tensors. */
static wf_status build(machine *m) {
    value *attributes = NULL;
    WF_TRY(pop(m, &attributes));
    size_t floor = m->n_marks > 0 ? m->marks[m->n_marks - 1] : 0;
    if (m->n_stack <= floor || m->stack[m->n_stack - 1]->kind != WF_PICKLE_DICT)
        return refuse(m, "attributes are set on something that is no dict");
    return WF_OK;
}

/* --- opcodes ---------------------------------------------------------------------------------- */

static wf_status proto(machine *m) {
    uint64_t version = 0;
    WF_TRY(take_number(m, 1, &version));
    if (version < 2 || version > 5)
        return refuse(m, "pickle protocol %u; 2 to 5 are read", (unsigned)version);
    return WF_OK;
}

static wf_status frame(machine *m) {
    uint64_t length = 0;
    WF_TRY(take_number(m, 8, &length));
    if (length > m->size - m->at) return refuse(m, "a frame is longer than the pickle");
    return WF_OK;
}

static wf_status mark(machine *m) {
    WF_TRY(grow(m, (void **)&m->marks, &m->marks_capacity, m->n_marks + 1, sizeof *m->marks));
    m->marks[m->n_marks++] = m->n_stack;
    return WF_OK;
}

static wf_status push_number(machine *m, int bytes) {
    uint64_t bits = 0;
    WF_TRY(take_number(m, bytes, &bits));
    return push_integer(m, WF_PICKLE_INT, bytes == 4 ? (int32_t)bits : (int64_t)bits);
}

static wf_status tuple_from_mark(machine *m) {
    value **items = NULL;
    size_t count = 0;
    WF_TRY(pop_mark(m, &items, &count));
    return push_tuple(m, items, count);
}

static wf_status drop(machine *m) {
    value *ignored = NULL;
    return pop(m, &ignored);
}

static wf_status step(machine *m, uint8_t opcode) {
    value *v = NULL;
    switch (opcode) {
    case 0x80: return proto(m);
    case 0x95: return frame(m);
    case '(': return mark(m);
    case '0': return drop(m);
    case 'N': return push_new(m, WF_PICKLE_NONE, &v);
    case 0x88: return push_integer(m, WF_PICKLE_BOOL, 1);
    case 0x89: return push_integer(m, WF_PICKLE_BOOL, 0);
    case 'J': return push_number(m, 4);
    case 'K': return push_number(m, 1);
    case 'M': return push_number(m, 2);
    case 0x8a: return push_long(m);
    case 'G': return push_float(m);
    case 'X': return push_text(m, WF_PICKLE_TEXT, 4);
    case 0x8c: return push_text(m, WF_PICKLE_TEXT, 1);
    case 0x8d: return push_text(m, WF_PICKLE_TEXT, 8);
    case 'C': return push_text(m, WF_PICKLE_BYTES, 1);
    case 'B': return push_text(m, WF_PICKLE_BYTES, 4);
    case ')': return push_short_tuple(m, 0);
    case 0x85: return push_short_tuple(m, 1);
    case 0x86: return push_short_tuple(m, 2);
    case 0x87: return push_short_tuple(m, 3);
    case 't': return tuple_from_mark(m);
    case ']': return push_new(m, WF_PICKLE_LIST, &v);
    case 'a': return extend_by(m, WF_PICKLE_LIST, 1);
    case 'e': return extend_from_mark(m, WF_PICKLE_LIST);
    case '}': return push_new(m, WF_PICKLE_DICT, &v);
    case 's': return extend_by(m, WF_PICKLE_DICT, 2);
    case 'u': return extend_from_mark(m, WF_PICKLE_DICT);
    case 'q': return memo_put_at(m, 1);
    case 'r': return memo_put_at(m, 4);
    case 0x94: return memo_put(m, m->n_memo);
    case 'h': return memo_get(m, 1);
    case 'j': return memo_get(m, 4);
    case 'c': return global_in_line(m);
    case 0x93: return global_on_stack(m);
    case 'Q': return persistent(m);
    case 'R': return reduce(m);
    case 0x81: return new_object(m);
    case 'b': return build(m);
    default:
        return refuse(m,
                      "opcode 0x%02x is not one that tensors need; save the weights alone: "
                      "torch.save(model.state_dict(), path)",
                      opcode);
    }
}

static wf_status run(machine *m, const value **out) {
    for (;;) {
        m->opcode_at = m->at;
        if (m->at >= m->size) return refuse(m, "the pickle ends without STOP");
        uint8_t opcode = m->bytes[m->at++];
        if (opcode == '.') break;
        WF_TRY(step(m, opcode));
    }
    if (m->n_stack != 1 || m->n_marks != 0) return refuse(m, "STOP with %zu values", m->n_stack);
    if (m->at != m->size) return refuse(m, "bytes after the end of the pickle");
    *out = m->stack[0];
    return WF_OK;
}

wf_status wf_pickle_read(wf_ctx *ctx, const char *label, const void *bytes, size_t size,
                         size_t budget, wf_arena *arena, const wf_pickle_value **out) {
    machine m = {
        .ctx = ctx, .label = label, .bytes = bytes, .size = size, .arena = arena, .budget = budget};
    wf_status status = run(&m, out);
    free(m.stack);
    free(m.marks);
    free(m.memo);
    return status;
}
