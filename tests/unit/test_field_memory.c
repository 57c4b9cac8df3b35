/* After the first step of a shape, forward and backward touch no allocator; and memory that runs
 * out is a status. */
#include "field_case.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define own_allocator 0
#else
#define own_allocator 1

/* The program's allocator: glibc's, counted; when limited it refuses all after the first
 * `allowed`. */
static size_t allocations;
static long allowed;
static bool limited, refused;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static bool refuse(void) {
    __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
    if (!__atomic_load_n(&limited, __ATOMIC_RELAXED)) return false;
    if (__atomic_fetch_sub(&allowed, 1, __ATOMIC_RELAXED) > 0) return false;
    __atomic_store_n(&refused, true, __ATOMIC_RELAXED);
    return true;
}
void *malloc(size_t size) { return refuse() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return refuse() ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return refuse() ? NULL : __libc_realloc(old, size); }
void *aligned_alloc(size_t alignment, size_t size) {
    return refuse() ? NULL : __libc_memalign(alignment, size);
}
int posix_memalign(void **out, size_t alignment, size_t size) {
    *out = refuse() ? NULL : __libc_memalign(alignment, size);
    return *out == NULL ? 12 : 0;
}
#endif

#if own_allocator
static const char *const archs[] = {"2-16-3", "5-9-4", "2-16-3", "3-3-3-3", NULL};

static wf_field_desc described(int layout) {
    wf_field_desc desc = wf_field_desc_default();
    desc.layout = (wf_layout)layout;
    desc.node = desc.edge = 33;
    desc.time = 32;
    desc.blocks = 2;
    desc.messages = WF_MESSAGES_ATTENTION;
    return desc;
}
#endif

static void test_no_allocation(void **state) {
    (void)state;
#if own_allocator
    for (int layout = 0; layout < 2; layout++) {
        field_case c = case_open(described(layout), WF_F32, archs);
        case_forward(&c, true);
        case_backward(&c);
        case_forward(&c, false);
        size_t before = allocations;
        for (int step = 0; step < 3; step++) {
            case_forward(&c, true);
            case_backward(&c);
            case_forward(&c, false);
        }
        assert_int_equal(allocations, before);
        case_close(&c);
    }
#else
    skip("the sanitizer has its own allocator");
#endif
}

/* The N-th allocation and all after it fail, for all N: a status with a sentence, and the field
 * works afterwards. */
static void test_out_of_memory(void **state) {
    (void)state;
#if own_allocator
    bool finished = false;
    for (long n = 1; !finished; n++) {
        assert_true(n < 1000);
        field_case c = case_open(described((int)(n % 2)), WF_F32, archs);
        wf_field *field = NULL;
        wf_field_input input = {.batch = &c.batch, .w = c.w, .t = c.t, .keep = true};
        __atomic_store_n(&allowed, n - 1, __ATOMIC_RELAXED);
        __atomic_store_n(&refused, false, __ATOMIC_RELAXED);
        __atomic_store_n(&limited, true, __ATOMIC_RELAXED);
        wf_status status = wf_field_create(c.ctx, &wf__field_gmn, &c.desc, NULL, WF_F32, &field);
        if (status == WF_OK) status = wf_field_forward(c.ctx, field, c.params, &input, c.v);
        if (status == WF_OK) status = wf_field_backward(c.ctx, field, c.dv, c.grad, c.dw);
        __atomic_store_n(&limited, false, __ATOMIC_RELAXED);
        finished = !__atomic_load_n(&refused, __ATOMIC_RELAXED);
        if (!finished) {
            assert_int_equal(status, WF_ERR_MEMORY);
            assert_true(strlen(wf_last_error(c.ctx)) > 10);
        } else {
            assert_int_equal(status, WF_OK);
        }
        if (field != NULL) {
            assert_ok(c.ctx, wf_field_forward(c.ctx, field, c.params, &input, c.v));
            assert_ok(c.ctx, wf_field_backward(c.ctx, field, c.dv, c.grad, c.dw));
        }
        wf_field_free(field);
        case_close(&c);
    }
#else
    skip("the sanitizer has its own allocator");
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
