/* product_cpu: the products of product.h, and loops over rows and columns with threads. */
#include "tensor/cpu/product.h"

enum {
    block_rows = 48,
    block_columns = 256,
    weight_rows = 96,
    few_columns = (int)gemm_panel > (int)WF_PAD ? (int)gemm_panel : (int)WF_PAD,
    range_values = 32768
};

static int blocks_of(int count, int each) { return (count + each - 1) / each; }
static int least(int a, int b) { return a < b ? a : b; }

/* --- B row-major ------------------------------------------------------------------------------ */
/* A last group of fewer than WF_PAD columns: B and C by way of padded copies. */
static void narrow_block(const product_args *g, const real *a, const real *b, real *c, int m,
                         int n) {
    real packed[product_depth * WF_PAD], tile[block_rows * WF_PAD];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < WF_PAD; j++)
            tile[i * WF_PAD + j] = g->add && j < n ? c[i * g->ldc + j] : 0;
    for (int k0 = 0; k0 < g->k; k0 += product_depth) {
        int depth = least(product_depth, g->k - k0);
        for (int k = 0; k < depth; k++)
            for (int j = 0; j < WF_PAD; j++)
                packed[k * WF_PAD + j] = j < n ? b[(k0 + k) * g->ldb + j] : 0;
        gemm_args args = {
            tile, WF_PAD, a + k0 * g->a_k, g->a_row, g->a_k, packed, WF_PAD, gemm_panel,
            0,    m,      depth,           WF_PAD,   true};
        WF_FN(wf_gemm)(&args);
    }
    for (int i = 0; i < m; i++) memcpy(c + i * g->ldc, tile + i * WF_PAD, (size_t)n * sizeof(real));
}

static void product_chunk(void *arg, size_t chunk, int worker) {
    (void)worker;
    const product_args *g = arg;
    int across = blocks_of(g->n, block_columns);
    int i0 = (int)chunk / across * block_rows, j0 = (int)chunk % across * block_columns;
    int m = least(block_rows, g->m - i0), n = least(block_columns, g->n - j0);
    int whole = n / WF_PAD * WF_PAD;
    const real *a = g->a + i0 * g->a_row;
    real *c = g->c + i0 * g->ldc + j0;
    if (g->k == 0 && !g->add)
        for (int i = 0; i < m; i++) memset(c + i * g->ldc, 0, (size_t)n * sizeof(real));
    for (int k0 = 0; k0 < g->k && whole > 0; k0 += product_depth) {
        gemm_args args = {c,
                          g->ldc,
                          a + k0 * g->a_k,
                          g->a_row,
                          g->a_k,
                          g->b + k0 * g->ldb + j0,
                          g->ldb,
                          gemm_panel,
                          0,
                          m,
                          least(product_depth, g->k - k0),
                          whole,
                          g->add || k0 > 0};
        WF_FN(wf_gemm)(&args);
    }
    if (whole < n && g->k > 0) narrow_block(g, a, g->b + j0 + whole, c + whole, m, n - whole);
}

void WF_FN(wf_product)(wf_ctx *ctx, const product_args *args) {
    size_t chunks =
        (size_t)blocks_of(args->m, block_rows) * (size_t)blocks_of(args->n, block_columns);
    wf_parallel(ctx, chunks, product_chunk, (void *)args);
}

/* --- B is a transposed weight ----------------------------------------------------------------- */
typedef struct weight_work {
    real *c;
    int ldc;
    const real *x, *w, *panels;
    int ldx, ldw, m, k, n;
    bool add;
} weight_work;

/* Many rows: the weight is packed, rows of x are multiplied by it. */
static void rows_chunk(void *arg, size_t chunk, int worker) {
    (void)worker;
    const weight_work *g = arg;
    int across = blocks_of(g->n, block_columns);
    int i0 = (int)chunk / across * weight_rows, j0 = (int)chunk % across * block_columns;
    for (int k0 = 0; k0 < g->k; k0 += product_depth) {
        gemm_args args = {g->c + (ptrdiff_t)i0 * g->ldc + j0,
                          g->ldc,
                          g->x + (ptrdiff_t)i0 * g->ldx + k0,
                          g->ldx,
                          1,
                          g->panels + (ptrdiff_t)j0 * g->k,
                          0,
                          (ptrdiff_t)gemm_panel * g->k,
                          k0,
                          least(weight_rows, g->m - i0),
                          least(product_depth, g->k - k0),
                          least(block_columns, g->n - j0),
                          g->add || k0 > 0};
        WF_FN(wf_gemm)(&args);
    }
}

/* Few rows: they are packed, and the weight is read once, row by row, for C' = W X'. */
static void weight_chunk(void *arg, size_t chunk, int worker) {
    (void)worker;
    const weight_work *g = arg;
    real tile[weight_rows * few_columns];
    int across = blocks_of(g->m, few_columns);
    int i0 = (int)chunk / across * weight_rows, j0 = (int)chunk % across * few_columns;
    int rows = least(weight_rows, g->n - i0), columns = least(few_columns, g->m - j0);
    int width = wf_pad(columns);
    for (int k0 = 0; k0 < g->k; k0 += product_depth) {
        gemm_args args = {tile,
                          width,
                          g->w + (ptrdiff_t)i0 * g->ldw + k0,
                          g->ldw,
                          1,
                          g->panels + (ptrdiff_t)j0 * g->k,
                          0,
                          (ptrdiff_t)gemm_panel * g->k,
                          k0,
                          rows,
                          least(product_depth, g->k - k0),
                          columns,
                          k0 > 0};
        WF_FN(wf_gemm)(&args);
    }
    for (int j = 0; j < columns; j++) {
        real *out = g->c + (ptrdiff_t)(j0 + j) * g->ldc + i0;
        if (g->add)
            for (int i = 0; i < rows; i++) out[i] += tile[i * width + j];
        else
            for (int i = 0; i < rows; i++) out[i] = tile[i * width + j];
    }
}

bool WF_FN(wf_product_by_weight)(wf_ctx *ctx, wf_arena *arena, real *c, int ldc, const real *x,
                                 int ldx, const real *w, int ldw, int m, int k, int n, bool add) {
    wf_arena_mark mark = wf_arena_here(arena);
    bool many = m >= n;
    real *panels = scratch(arena, many ? wf_panel_size(k, n) : wf_panel_size(k, m));
    if (panels == NULL) return false;
    weight_work work = {c, ldc, x, w, panels, ldx, ldw, m, k, n, add};
    if (many) {
        WF_FN(wf_pack_panels)(w, 1, ldw, k, n, panels);
        wf_parallel(ctx, (size_t)blocks_of(m, weight_rows) * (size_t)blocks_of(n, block_columns),
                    rows_chunk, &work);
    } else {
        WF_FN(wf_pack_panels)(x, 1, ldx, k, m, panels);
        for (int i = 0; i < m && !add; i++)
            memset(c + (ptrdiff_t)i * ldc + n, 0, (size_t)(wf_pad(n) - n) * sizeof(real));
        wf_parallel(ctx, (size_t)blocks_of(n, weight_rows) * (size_t)blocks_of(m, few_columns),
                    weight_chunk, &work);
    }
    wf_arena_rewind(arena, mark);
    return true;
}

/* --- ranges ----------------------------------------------------------------------------------- */
typedef struct range_work {
    const wf_op *op;
    range_fn *fn;
    void *more;
    int count, each;
    bool groups;
} range_work;

/* The first row from `row` on that begins a group. */
static int group_start(const range_work *work, int row) {
    const uint32_t *map = work->op->map;
    if (row >= work->count) return work->count;
    while (row > 0 && row < work->count && map[row] == map[row - 1]) row++;
    return row;
}

static void range_chunk(void *arg, size_t chunk, int worker) {
    (void)worker;
    const range_work *work = arg;
    int first = (int)chunk * work->each, last = least(first + work->each, work->count);
    if (work->groups) {
        first = group_start(work, first);
        last = group_start(work, last);
    }
    if (first < last) work->fn(work->op, work->more, first, last);
}

void WF_FN(wf_over_rows)(const wf_op *op, int count, int width, range_fn *fn, void *more) {
    int each = op->ctx == NULL ? count : range_values / (width > 0 ? width : 1);
    range_work work = {op, fn, more, count, each > 0 ? each : 1, false};
    wf_parallel(op->ctx, (size_t)blocks_of(count, work.each), range_chunk, &work);
}

void WF_FN(wf_over_groups)(const wf_op *op, int count, int width, range_fn *fn, void *more) {
    int each = op->ctx == NULL ? count : range_values / (width > 0 ? width : 1);
    range_work work = {op, fn, more, count, each > 0 ? each : 1, op->ctx != NULL};
    wf_parallel(op->ctx, (size_t)blocks_of(count, work.each), range_chunk, &work);
}

void WF_FN(wf_over_columns)(const wf_op *op, int count, range_fn *fn, void *more) {
    enum { columns = 64 };
    range_work work = {op, fn, more, count, op->ctx == NULL ? count : columns, false};
    if (count > 0) wf_parallel(op->ctx, (size_t)blocks_of(count, work.each), range_chunk, &work);
}
