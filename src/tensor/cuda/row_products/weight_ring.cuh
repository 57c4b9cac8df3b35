/* weight_ring: a ring of tiles of weights between memory and the products of a row sequence.
 *
 * A tile is 64 x 64 in bf16. Word w of 16 bytes of row r is at r * 128 + 16 * (w ^ r % 8), so that
 * eight rows of a column are in different banks. One warp fetches tiles by cp.async in the order of
 * use. Weights depend on nothing, so it runs ahead across products and operations as far as the
 * ring is deep. The other warps take one tile after the other, each at its own pace. A buffer is
 * filled again when all of them have released it. */
#pragma once

#include "tensor/cuda/row_products/row_sequence.cuh"
#include "tensor/cuda/tensor_cores/fragments.cuh"

namespace wf_gpu {

enum {
    tile_side = 64,
    tile_bytes = tile_side * tile_side * (int)sizeof(__nv_bfloat16),
    most_ring = 24
};

__device__ inline uint32_t shared_place(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ inline void barrier_create(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier)
                 : "memory");
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
#else
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
#endif
    } while (!done);
}

/* A warp's position in the ring: the next buffer, and the number of rounds modulo 2. Barriers of
 * eight bytes: first `full` of all buffers, then `empty` of all. */
struct weight_ring {
    uint32_t buffers, barriers;
    int depth, at;
    uint32_t round;

    __device__ uint32_t full() const { return barriers + 8 * (uint32_t)at; }
    __device__ uint32_t empty() const { return barriers + 8 * (uint32_t)(most_ring + at); }
    __device__ uint32_t buffer() const { return buffers + (uint32_t)(at * tile_bytes); }
    __device__ void advance() {
        if (++at == depth) at = 0, round ^= 1;
    }
    __device__ void create(int readers) const {
        for (int k = 0; k < depth; k++) {
            barrier_create(barriers + 8 * (uint32_t)k, 32);
            barrier_create(barriers + 8 * (uint32_t)(most_ring + k), readers);
        }
    }
    /* Fetches the next tile. `rows` of its 64 rows exist, and `cols` elements of each; rows are
     * `ld` apart. */
    __device__ void fetch(const __nv_bfloat16 *w, int ld, int rows, int cols) {
        int lane = (int)threadIdx.x % 32, unit = lane % 8, row = lane / 8;
        const __nv_bfloat16 *from = w + (size_t)row * ld + 8 * unit;
        bool inside = 8 * unit < cols;
        barrier_wait(empty(), round ^ 1);
        uint32_t to = buffer() + (uint32_t)(row * 128);
#pragma unroll
        for (int i = 0; i < tile_side / 4; i++) {
            bool there = inside && row + 4 * i < rows;
            uint32_t place = to + (uint32_t)(i * 512 + 16 * (unit ^ ((row + 4 * i) & 7)));
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place),
                         "l"(there ? from + (size_t)(4 * i) * ld : w), "r"(there ? 16 : 0)
                         : "memory");
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full()) : "memory");
        advance();
    }
    __device__ uint32_t take() const {
        barrier_wait(full(), round);
        return buffer();
    }
    /* The tile after it. */
    __device__ uint32_t take_next() const {
        weight_ring next = *this;
        next.advance();
        return next.take();
    }
    __device__ void give_back() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty());
        advance();
    }
};

/* The columns of a product that this block takes: all, or `columns` of them if products are divided
 * among blocks. */
struct column_span {
    int begin, end;
};
__device__ inline column_span span_of(const row_sequence &c, int step, int columns) {
    const row_op &s = c.ops[step];
    if (!c.apart) return column_span{0, s.cols};
    int at = (int)blockIdx.y;
    for (int k = 0; k < step; k++)
        if (c.ops[k].kind == row_product) at -= (c.ops[k].cols + columns - 1) / columns;
    int begin = at * columns;
    if (at < 0 || begin >= s.cols) return column_span{0, 0};
    return column_span{begin, min(s.cols, begin + columns)};
}

/* Fetches all tiles of the sequence in the order in which multiply takes them. */
__device__ inline void fetch_all(const row_sequence &c, weight_ring ring, int columns) {
    for (int k = 0; k < c.count; k++) {
        const row_op &s = c.ops[k];
        if (s.kind != row_product) continue;
        column_span span = span_of(c, k, columns);
        for (int n = span.begin; n < span.end; n += columns)
            for (int p = 0; p < s.n_terms; p++) {
                const product_term &term = s.terms[p];
                for (int depth = 0; depth < term.k; depth += tile_side)
                    for (int col = n; col < min(s.cols, n + columns); col += tile_side) {
                        int row = s.transposed ? depth : col, first = s.transposed ? col : depth;
                        ring.fetch(term.w + (size_t)row * term.ld + first, term.ld,
                                   (s.transposed ? term.k : s.cols) - row, term.ld - first);
                    }
            }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

} // namespace wf_gpu
