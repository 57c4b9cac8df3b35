/* zoo_tile: the tiles of zoo_tiles.h for one vector width; included once for each.
 * TILE_LANES reals in a vector, TILE_FN(name) names the functions. */
typedef real TILE_FN(vec) __attribute__((vector_size(TILE_LANES * sizeof(real))));
typedef real TILE_FN(vec_u)
    __attribute__((vector_size(TILE_LANES * sizeof(real)), aligned(sizeof(real)), may_alias));
#define vec TILE_FN(vec)
#define vload(from) ((vec) * (const TILE_FN(vec_u) *)(from))
#define vstore(to, value) (*(TILE_FN(vec_u) *)(to) = (value))

ALWAYS_INLINE vec TILE_FN(finish)(finish_kind finish, vec sum, const real *gate) {
    typedef __typeof__(sum > sum) mask;
    const vec zero = {0};
    switch (finish) {
    case finish_relu: return (vec)((mask)(sum > zero) & (mask)sum);
    case finish_gate: return (vec)((mask)(vload(gate) > zero) & (mask)sum);
    case finish_multiply: return sum * vload(gate);
    default: return sum;
    }
}

ALWAYS_INLINE void TILE_FN(rows_tile)(const rows_product *p, int row, size_t column, const int R,
                                      const int V) {
    vec sum[tile_rows][tile_vectors];
    const real *a[tile_rows];
    const real *b = p->b + column;
    const int depth = p->depth;
    const size_t stride = p->stride;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        a[r] = p->a[row + r];
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) sum[r][v] = vload(p->init + column + v * TILE_LANES);
    }
    for (int k = 0; k < depth; k++, b += stride) {
        vec bk[tile_vectors];
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) bk[v] = vload(b + v * TILE_LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 3
            for (int v = 0; v < V; v++) sum[r][v] += a[r][k] * bk[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        size_t at = (size_t)(row + r) * stride + column;
#pragma GCC unroll 3
        for (int v = 0; v < V; v++, at += TILE_LANES)
            vstore(p->out + at, TILE_FN(finish)(p->finish, sum[r][v], p->gate + at));
    }
}

ALWAYS_INLINE void TILE_FN(rows_panel)(const rows_product *p, size_t column, const int V) {
    int row = 0;
    for (; row + tile_rows <= p->rows; row += tile_rows)
        TILE_FN(rows_tile)(p, row, column, tile_rows, V);
    for (; row + 2 <= p->rows; row += 2) TILE_FN(rows_tile)(p, row, column, 2, V);
    if (row < p->rows) TILE_FN(rows_tile)(p, row, column, 1, V);
}

ALWAYS_INLINE void TILE_FN(outer_tile)(const outer_product *p, int first, size_t column,
                                       const int R, const int V) {
    vec sum[tile_tall][tile_vectors];
    real *out = p->sum + (size_t)first * p->stride + column;
    const real *d = p->d + column;
    const size_t stride = p->stride;
    const vec zero = {0};
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 3
        for (int v = 0; v < V; v++)
            sum[r][v] = p->add ? vload(out + (size_t)r * stride + v * TILE_LANES) : zero;
    for (int e = 0; e < p->rows; e++, d += stride) {
        const real *a = p->a[e] + first;
        __asm__("" : "+r"(a)); /* else the compiler keeps R addresses instead of one */
        vec de[tile_vectors];
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) de[v] = vload(d + v * TILE_LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 3
            for (int v = 0; v < V; v++) sum[r][v] += a[r] * de[v];
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 3
        for (int v = 0; v < V; v++) vstore(out + (size_t)r * stride + v * TILE_LANES, sum[r][v]);
}

ALWAYS_INLINE void TILE_FN(outer_panel)(const outer_product *p, size_t column, const int V) {
    int i = 0;
    if (V == 1)
        for (; i + tile_tall <= p->height; i += tile_tall)
            TILE_FN(outer_tile)(p, i, column, tile_tall, 1);
    for (; i + tile_rows <= p->height; i += tile_rows)
        TILE_FN(outer_tile)(p, i, column, tile_rows, V);
    for (; i + 2 <= p->height; i += 2) TILE_FN(outer_tile)(p, i, column, 2, V);
    if (i < p->height) TILE_FN(outer_tile)(p, i, column, 1, V);
}

/* sum[u] (+)= sum over rows of d[e][u]: four partial sums, added in order. */
ALWAYS_INLINE void TILE_FN(column_sum)(const real *d, int rows, size_t stride, real *sum,
                                       bool add) {
    vec part[4] = {{0}, {0}, {0}, {0}};
    int e = 0;
    for (; e + 4 <= rows; e += 4, d += 4 * stride)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) part[i] += vload(d + (size_t)i * stride);
    for (; e < rows; e++, d += stride) part[0] += vload(d);
    vec total = (part[0] + part[1]) + (part[2] + part[3]);
    vstore(sum, add ? vload(sum) + total : total);
}

#undef vec
#undef vload
#undef vstore
#undef TILE_LANES
#undef TILE_FN
