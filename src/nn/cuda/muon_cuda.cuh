/* muon_cuda: Newton-Schulz of many matrices at once (nn/cpu/optim_cpu.c has the iteration).
 *
 * The work space holds each matrix tall, Y (n, r), n >= r, both padded with zeros to multiples of
 * 64; A and Q are (r, r). In bf16 a matrix that fits into shared memory is iterated there, one CTA
 * each, all in one launch. For the others, and in float, each launch makes one product of all
 * matrices, with a list of 64 x 64 tiles. */
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

namespace wf_muon {

enum { tile = 64, steps = 5 };

struct matrix {
    uint32_t offset;       /* in the flat arrays */
    int rows, cols;        /* in the flat arrays */
    int n, r;              /* padded, tall */
    bool transposed;       /* Y is the transpose */
    float shape;           /* sqrt(max(1, rows / cols)) */
    uint32_t y, a;         /* offsets of Y (also Z) and of A (also Q) in the work arrays */
    int first_part, parts; /* partial sums of squares of Y */
};

struct tile_place {
    int matrix, i, j;
};

/* Walks the flat array in equal strides and gives the place of the element in Y. */
struct walk {
    const matrix &m;
    uint32_t i, j, rows, rest;
    __device__ walk(const matrix &of, uint32_t at, uint32_t stride)
        : m(of), i(at / (uint32_t)of.cols), j(at % (uint32_t)of.cols),
          rows(stride / (uint32_t)of.cols), rest(stride % (uint32_t)of.cols) {}
    __device__ uint32_t place() const {
        return m.y + (m.transposed ? j * (uint32_t)m.r + i : i * (uint32_t)m.r + j);
    }
    __device__ void next() {
        i += rows;
        j += rest;
        if (j >= (uint32_t)m.cols) j -= (uint32_t)m.cols, i++;
    }
};

/* Device tables and work space. fast: elements are bf16, else float. */
struct work {
    const matrix *matrices;
    const tile_place *square_tiles, *tall_tiles;
    int n_square, n_tall;
    const int *inside[2]; /* matrices iterated in shared memory, r = 64 and 128 */
    int n_inside[2], inside_bytes[2];
    void *y, *z, *a, *q;
    const double *squares; /* partial sums of squares of Y */
    const int *go;         /* 0: the update is not made */
};

/* Shared memory that a matrix needs to be iterated there; 0: it cannot be, or it needs more than
 * `most`. */
int inside_bytes(const matrix &m, int most);
/* Before the first call. */
cudaError_t prepare(const work &w);
/* From Y of any scale to the orthogonalised matrices; returns the array that holds them (work.y or
 * work.z). */
void *orthogonalise(const work &w, bool fast, cudaStream_t stream);

} // namespace wf_muon
