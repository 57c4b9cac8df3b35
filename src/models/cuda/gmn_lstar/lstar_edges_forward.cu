/* lstar_edges_forward: the edge update of an lstar block in one kernel. Formula: wf_lstar_edges in
 * tensor/tape.h.
 *
 *   tile (64 edges, a warpgroup):  eb = LN(e) modulated                      bf16 fragments
 *                                  z1 = s(Ee eb + Ci[dst] + Cj[src])         pieces of 64 columns
 *                                  z2 = s(E2 z1 + c2)                        pieces of 64 columns
 *                                  e' = e + c3 + E3 z2                       fp32, 16 bytes a lane
 * Weights stay in shared memory as bf16 panels. At D = 128 they take 256 KB: there E3 comes from L2
 * as it is needed, a strip of 64 columns (16 KB) at a time into a buffer of the warpgroup's own,
 * the first one while z2 is computed. Rows of the tables come a piece ahead into shared memory, at
 * D = 128 into the place of E3's strips.
 * An edge costs 4 D H + 2 H H FLOP, 2 H special functions. Bytes: 8 D of e and e' (12 D at D = 128,
 * where it is read again for the residual), 2.5 H of tables where they miss L1, 2 H of E3 where it
 * is streamed. Latency is the limit: half of the stalls wait for memory. */
#include "models/cuda/gmn_lstar/lstar_fused.cuh"
#include "models/cuda/gmn_lstar/lstar_stream.cuh"

namespace wf_gpu {
namespace {

struct edge_step {
    const wf_bundle *bundles;
    int list_length, tasks;
    const float *e, *modulation, *ci, *cj, *c2, *c3;
    int ld_e, ld_modulation, ld_table;
    mma::weight_rows ee, e2, e3;
    const unsigned char *image; /* of E3 as a panel; only where it is streamed */
    float *out;
};

template <int D, int H> __host__ __device__ constexpr size_t weight_bytes() {
    return mma::panel_bytes(H, D) + mma::panel_bytes(H, H) + last_bytes<D, H>() +
           (H + D) * sizeof(float);
}
/* e is kept for the residual where there is room. */
template <int D, int H> __host__ __device__ constexpr bool rows_aside() {
    return weight_bytes<D, H>() + table_bytes<D, H>(forward_groups<D>()) +
               forward_groups<D>() * mma::tile_rows * D * sizeof(float) <=
           226 * 1024;
}
template <int D, int H> __host__ __device__ constexpr size_t edge_bytes() {
    return weight_bytes<D, H>() + table_bytes<D, H>(forward_groups<D>()) +
           (rows_aside<D, H>() ? forward_groups<D>() * mma::tile_rows * D * sizeof(float) : 0);
}

/* --- the image of E3 -------------------------------------------------------------------------- */
__global__ void image_kernel(const float *w, int ld, int rows, int cols, unsigned char *to) {
    wait_for_previous();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), words = cols / 8;
    if (i >= rows * words) return;
    int row = i / words, word = i % words;
    const float *from = w + (size_t)mma::column_of(row) * ld + word / 2 * 16 + word % 2 * 2;
    mma::panel at = {0, rows};
    *(uint4 *)(to + at.at(row, word)) =
        uint4{mma::pack(from[0], from[1]), mma::pack(from[4], from[5]), mma::pack(from[8], from[9]),
              mma::pack(from[12], from[13])};
}

/* --- the kernel ------------------------------------------------------------------------------- */
/* acc = e + c3 of a pair's rows: from the lane's place aside, or once more from memory. */
template <int D>
__device__ inline void load_residual(float (&acc)[D / 8][4], const float *e, int ld,
                                     const float4 *aside, const float *c3, const bundle::pair &p) {
    int c = (int)(threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        float4 bias = *(const float4 *)(c3 + 16 * j + 4 * c), x[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (aside != NULL) x[k] = aside[(k * (D / 16) + j) * bundle::group_threads];
            else x[k] = bundle::load4(e + (size_t)p.row[k] * ld + 16 * j + 4 * c);
            x[k] = float4{x[k].x + bias.x, x[k].y + bias.y, x[k].z + bias.z, x[k].w + bias.w};
        }
        bundle::put4(acc, j, x[0], x[1]);
    }
}

template <int Tiles>
__device__ inline void store_rows(const float (&acc)[Tiles][4], float *out, int ld,
                                  const bundle::pair &p) {
    int c = (int)(threadIdx.x % 4);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        if (p.live[k] == 0) continue;
        float *to = out + (size_t)p.row[k] * ld + 4 * c;
#pragma unroll
        for (int j = 0; j < Tiles / 2; j++)
            *(float4 *)(to + 16 * j) = float4{acc[2 * j][2 * k], acc[2 * j][2 * k + 1],
                                              acc[2 * j + 1][2 * k], acc[2 * j + 1][2 * k + 1]};
    }
}

template <int D, int H, bool Wgmma>
__global__ void __launch_bounds__(forward_groups<D>() * bundle::group_threads, 1)
    edges_kernel(edge_step s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    constexpr bool stream_last = streamed<D, H>();
    constexpr int pieces = H / bundle::piece;
    int group = (int)threadIdx.x / bundle::group_threads;
    mma::panel ee = {mma::shared_address(shared), H};
    mma::panel e2 = {ee.base + (uint32_t)mma::panel_bytes(H, D), H};
    mma::panel e3 = {e2.base + (uint32_t)mma::panel_bytes(H, H), D};
    float *c2 = (float *)(shared + weight_bytes<D, H>() - (H + D) * sizeof(float)), *c3 = c2 + H;
    float4 *aside = NULL;
    if (rows_aside<D, H>())
        aside = (float4 *)(shared + weight_bytes<D, H>() + table_bytes<D, H>(forward_groups<D>())) +
                group * (mma::tile_rows * D / 4) + threadIdx.x % bundle::group_threads;
    mma::stage_panel(ee, 0, s.ee, H, D);
    mma::stage_panel(e2, 0, s.e2, H, H);
    if (stream_last) e3.base += (uint32_t)(group * mma::panel_bytes(D, mma::strip_columns));
    else mma::stage_panel(e3, 0, s.e3, D, H);
    for (int i = (int)threadIdx.x; i < H; i += (int)blockDim.x) c2[i] = s.c2[i];
    for (int i = (int)threadIdx.x; i < D; i += (int)blockDim.x) c3[i] = s.c3[i];
    wait_for_previous();
    __syncthreads();
    int warp = (int)threadIdx.x % bundle::group_threads / 32;
    int first = (int)blockIdx.x * forward_groups<D>() + (int)threadIdx.x / bundle::group_threads;
    int stride = (int)gridDim.x * forward_groups<D>(), rounds = (s.tasks + stride - 1) / stride;
    bundle::row_buffer tables = table_buffer<D, H>(
        shared + mma::panel_bytes(H, D) + mma::panel_bytes(H, H), shared + weight_bytes<D, H>());
    auto fetch_tables = [&](const bundle::ends &of, int k) {
        tables.fetch(of.from_a ? s.cj : s.ci, of.from_a ? s.ci : s.cj, s.ld_table,
                     bundle::piece * k, of);
    };
    if (first < s.tasks)
        fetch_tables(bundle::load_ends(s.bundles, (first * WF_GROUP_WARPS + warp) * s.list_length),
                     0);
#pragma unroll 1
    for (int step = 0; step < rounds * s.list_length; step++) {
        int task = first + step / s.list_length * stride, t = step % s.list_length;
        if (task >= s.tasks) break;
        int index = (task * WF_GROUP_WARPS + warp) * s.list_length + t;
        bundle::pair p = bundle::load_pair(s.bundles, index);
        if (t + 1 < s.list_length) bundle::fetch_pair<D>(s.bundles, index + 1, s.e, s.ld_e);
        bundle::ends next = bundle::load_ends(
            s.bundles, bundle::following(index, t, s.list_length, task, stride, s.tasks));
        mma::fragment z2[H / 16];
        {
            mma::fragment z1[H / 16];
            {
                mma::fragment eb[D / 16];
                bundle::normed_rows<D> rows;
                bundle::load_normed<D>(s.e, s.ld_e, p, &rows, aside);
                bundle::make_operand<D>(rows, s.modulation, s.ld_modulation, p, eb, NULL);
                bundle::in_pieces<Wgmma, pieces>(
                    [&](bundle::piece_acc &acc, int k) {
                        tables.take(acc);
                        mma::begin<Wgmma>();
                        mma::forward_mma<Wgmma>(acc, eb, ee, bundle::piece * k, 0, false);
                    },
                    [&](int k) {
                        if (k + 1 < pieces) fetch_tables(bundle::ends_of(p), k + 1);
                        else if (!stream_last) fetch_tables(next, 0);
                    },
                    [&](bundle::piece_acc &acc, int) {
                        mma::fragment z[bundle::piece_groups];
                        bundle::into_fragments(acc, z);
                        bundle::push(z1, z);
                    });
            }
            if (stream_last) { /* all warps have their tables, whose place it is */
                mma::group_barrier(1 + group);
                start_strip<D>(e3.base, s.image);
            }
            bundle::in_pieces<Wgmma, pieces>(
                [&](bundle::piece_acc &acc, int k) {
                    bundle::load_bias(acc, c2 + bundle::piece * k);
                    mma::begin<Wgmma>();
                    mma::forward_mma<Wgmma>(acc, z1, e2, bundle::piece * k, 0, false);
                },
                [](int) {},
                [&](bundle::piece_acc &acc, int) {
                    mma::fragment z[bundle::piece_groups];
                    bundle::into_fragments(acc, z);
                    bundle::push(z2, z);
                });
        }
        float acc[D / 8][4];
        load_residual<D>(acc, s.e, s.ld_e, aside, c3, p);
        if (stream_last) {
            constexpr int strips = H / mma::strip_columns, each = mma::strip_columns / 16;
#pragma unroll
            for (int k = 0; k < strips; k++) {
                await_strip(1 + group);
                mma::begin<Wgmma>();
                mma::forward_mma<Wgmma>(acc, *(const mma::fragment(*)[each])(z2 + each * k), e3, 0,
                                        0, false);
                mma::finish<Wgmma>();
                mma::group_barrier(1 + group);
                if (k + 1 < strips)
                    start_strip<D>(e3.base, s.image + (k + 1) * mma::panel_bytes(D, 64));
            }
            fetch_tables(next, 0);
        } else {
            mma::begin<Wgmma>();
            mma::forward_mma<Wgmma>(acc, z2, e3, 0, 0, false);
            mma::finish<Wgmma>();
        }
        mma::settle(acc);
        store_rows(acc, s.out, s.ld_e, p);
    }
    tables.await();
}

template <int D, int H, bool Wgmma> bool launch_edges(const edge_step &s) {
    size_t bytes = edge_bytes<D, H>();
    unsigned blocks = most_blocks(s.tasks, forward_groups<D>());
    start_kernel(edges_kernel<D, H, Wgmma>, blocks, forward_groups<D>() * bundle::group_threads,
                 bytes, s);
    return true;
}

template <int D, int H> bool edges_forward(const wf_op *op, wf_arena *arena) {
    const wf_bundle_table *o = op->part->bundles[WF_CUT_SHORT];
    const wf_tensor *e = op->in[0], *modulation = op->in[1], *ci = op->in[2], *ee = op->in[4],
                    *e2 = op->in[5], *e3 = op->in[7];
    unsigned char *image = NULL;
    if (streamed<D, H>()) {
        image = (unsigned char *)wf_arena_alloc(arena, mma::panel_bytes(D, H));
        if (image == NULL) return false;
        panel_image(data_of(e3), e3->ld, D, H, image);
    }
    edge_step s = {o->bundles,
                   o->list_length,
                   o->n_tasks,
                   data_of(e),
                   data_of(modulation) + op->column,
                   data_of(ci),
                   data_of(op->in[3]),
                   data_of(op->in[6]),
                   data_of(op->in[8]),
                   e->ld,
                   modulation->ld,
                   ci->ld,
                   weight_rows_of(ee),
                   weight_rows_of(e2),
                   weight_rows_of(e3),
                   image,
                   data_of(op->out[0])};
    if (s.tasks > 0 && !(use_wgmma() ? launch_edges<D, H, true>(s) : launch_edges<D, H, false>(s)))
        return false;
    return launched();
}

} // namespace

void panel_image(const float *w, int ld, int rows, int cols, unsigned char *to) {
    start_kernel(image_kernel, blocks_for((size_t)(rows * cols / 8), threads_each), threads_each, 0,
                 w, ld, rows, cols, to);
}

op_function *lstar_edges_fused_forward(const wf_op *op) {
    if (op->act != WF_TAPE_ACT_SILU || !whole_vectors(op)) return NULL;
    WF_RETURN_FOR_WIDTHS(op, edge_bytes, edges_forward);
}

} // namespace wf_gpu
