/* lean_forward_cuda: the edges of a lean block forward, in one kernel and two sums of its slots.
 *
 *   eb = LN(e) modulated    [m | z] = unit(w1 eb + ad[dst] + as[src])    e' = e + (1 + gate) (w2 z + c2)
 * block   three warpgroups (two at D = 128), one block a multiprocessor: weights become bf16 panels once, then a warpgroup
 *         takes chunks of lines
 * tile    64 rows: e by 16-byte loads into fragments; hidden columns 64 at a time, accumulators begin as ad + as;
 *         z goes on into w2 from registers, m through shared memory into its sums
 * flops   2 (M + 4D) D an edge = 12 D^2 at M = 2D
 * bytes   e read twice (the second time from L2), e' written: 8D of HBM; tables 4 (M + 2D) (1 + 2/8) of L1 an edge;
 *         slots 4M * (1/8 + 1/16..1/8) written and read
 * measured on an H200, 256 graphs (ncu, cold L2): 64-16-8-10 at D = 64 0.146 ms a block, 784-32-32-10 folded at D = 128
 *         0.506 ms; 26 % of the HBM bound (0.038 ms) and 17 % of the tensor cores' (0.088 ms). What binds is latency: 12
 *         (8) warps, each waiting for tables, product and unit in turn
 * tried   two blocks of two warpgroups at 128 registers: 0.194 ms, spills that miss L1 */
#include "tensor/cuda/lean_fused_cuda.cuh"

#include <type_traits>

namespace wf_gpu {
namespace {

using namespace lean;
using namespace mma;

enum { strip = 64, strip_tiles = strip / 8, strip_bytes = 8192 };

/* Shared memory, in this order. */
template <int D> struct layout {
    static constexpr int groups = D > 64 ? 2 : 3, block_threads = 128 * groups;
    int w2, tiles, carried, sums, tables, c2, bytes;
    static constexpr int buffers = D > 64 ? 1 : 2;
    static constexpr bool in_tiles = D > 64; /* sums of eb lie where a strip of messages will */
    __host__ __device__ explicit layout(int messages) {
        w2 = (int)panel_bytes(messages + 2 * D, D);
        tiles = w2 + (int)panel_bytes(D, 2 * D);
        carried = tiles + groups * buffers * strip_bytes;
        int end = carried + messages / strip * block_threads * 16;
        sums = in_tiles ? tiles : end;
        tables = in_tiles ? end : sums + groups * 2 * 4 * D * 4;
        c2 = in_tiles ? end : tables + block_threads / 32 * shared_strip_bytes;
        bytes = c2 + D * 4;
    }
};

extern __shared__ __align__(1024) unsigned char shared[];

/* One warpgroup's way through its tiles. */
template <int D, bool Gelu, bool Wide> struct walker {
    static constexpr int groups = layout<D>::groups, block_threads = layout<D>::block_threads;
    const lean_fused &p;
    layout<D> at;
    panel w1, w2;
    int group, warp, lane, thread; /* thread of the warpgroup */
    int column;                    /* the lane's first of sixteen */
    lane_rows rows;
    fragment eb[D / 16];
    float graph_carried;
    int which; /* buffer of the next strip */
    /* The next strip of the tables; there is no room for it in shared memory beside the widest weights. */
    std::conditional_t<layout<D>::in_tiles, register_strip, shared_strip> next;

    __device__ explicit walker(const lean_fused &args)
        : p(args), at(args.messages), w1{shared_address(shared), args.messages + 2 * D},
          w2{shared_address(shared) + (uint32_t)at.w2, D}, group((int)threadIdx.x / 128),
          warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32),
          thread((int)threadIdx.x % 128), column(4 * (lane % 4)), graph_carried(0), which(0) {
        if constexpr (!layout<D>::in_tiles)
            next.base = shared + at.tables + threadIdx.x / 32 * shared_strip_bytes;
    }

    __device__ void stage() const {
        stage_panel(w1, 0, p.w1 + (size_t)p.skipped * D, D, w1.rows, D);
        stage_panel(w2, 0, p.w2, 2 * D, D, 2 * D);
        float *c2 = (float *)(shared + at.c2);
        for (int i = (int)threadIdx.x; i < D; i += block_threads) c2[i] = p.c2[i];
        __syncthreads();
    }

    __device__ panel buffer(int which) const {
        return panel{shared_address(shared) +
                         (uint32_t)(at.tiles + (group * layout<D>::buffers + which) * strip_bytes),
                     tile_rows};
    }

    /* Normalised edges become fragments, their sums over the warp's rows go to shared memory. */
    __device__ void norm(float *sums) {
        const float *mod = p.modulation + (size_t)rows.graph * p.ld_modulation + column;
        float4 v[2][D / 16];
        float mean, rho;
#pragma unroll
        for (int k = 0; k < 2; k++) load_row<D>(v[k], p.e + (size_t)rows.row[k] * D + column);
#pragma unroll
        for (int k = 0; k < 2; k++) normalise<D>(v[k], &mean, &rho);
        float total[D / 4];
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 shift = __ldg((const float4 *)(mod + 16 * j));
            float4 scale = __ldg((const float4 *)(mod + D + 16 * j));
            float4 upper = modulated(v[0][j], scale, shift);
            float4 lower = modulated(v[1][j], scale, shift);
            eb[j] = fragment_of(upper, lower);
            float4 both = plus(masked(rows.there[0], upper), masked(rows.there[1], lower));
            total[4 * j] = both.x, total[4 * j + 1] = both.y;
            total[4 * j + 2] = both.z, total[4 * j + 3] = both.w;
        }
        column_sums(total);
        int first = first_kept<D / 4>();
        if (layout<D>::in_tiles) group_barrier(1 + group);
#pragma unroll
        for (int k = 0; k < D / 32; k++) {
            int f = first + k;
            sums[warp * D + f / 4 * 16 + column + f % 4] = total[k];
        }
    }

    /* After a barrier: the sums of eb over runs, one thread a column. */
    __device__ void sum_runs(const float *sums, const tile_runs &t) {
        if (thread >= D) return;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (t.begins >> k & 1) graph_carried = 0;
            graph_carried += sums[k * D + thread];
            if (t.ends >> k & 1) p.run_sums[(size_t)t.run[k] * D + thread] = graph_carried;
        }
    }

    /* The tables for hidden columns n .. n + 63. */
    __device__ void fetch(int n) {
        const float *of_a = rows.from_a ? p.as : p.ad, *of_b = rows.from_a ? p.ad : p.as;
        int from = p.skipped + n;
        next.fetch(of_a + (size_t)rows.a * p.ld_table + from,
                   of_b + (size_t)rows.b[0] * p.ld_table + from,
                   of_b + (size_t)rows.b[1] * p.ld_table + from);
    }

    /* x of hidden columns n .. n + 63, whose tables have been fetched. */
    __device__ void hidden(float (&x)[strip_tiles][4], int n) {
        next.take(x);
        begin<Wide>();
        forward_mma<Wide>(x, eb, w1, n, 0, false);
        commit<Wide>();
        if (n + strip < w1.rows) fetch(n + strip);
        wait<Wide>();
        settle(x);
    }

    __device__ void messages(const tile_runs &t, int octet0, const float *sums) {
        for (int n = 0; n < p.messages; n += strip) {
            panel tile = buffer(which);
            which ^= layout<D>::buffers - 1;
            float x[strip_tiles][4];
            hidden(x, n);
            if (layout<D>::buffers == 1) group_barrier(1 + group);
#pragma unroll
            for (int j = 0; j < strip_tiles; j++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    x[j][k] = rows.there[k / 2] ? fast_unit<Gelu>(x[j][k]) : 0;
#pragma unroll
            for (int j = 0; j < strip / 16; j++)
                store_fragment(tile, 16 * warp, j, fragment_of(x[2 * j], x[2 * j + 1]));
            group_barrier(1 + group);
            if (n == 0 && !layout<D>::in_tiles) sum_runs(sums, t);
            float4 *carried =
                (float4 *)(shared + at.carried) + n / strip * block_threads + (int)threadIdx.x;
            float4 value = *carried;
            sum_tile(tile, 16 * warp, t, octet0, p.n_octets, p.slots + n + 16 * warp + column,
                     p.messages, &value);
            *carried = value;
        }
    }

    __device__ void update() {
        float o[D / 8][4];
#pragma unroll
        for (int n = 0; n < 2 * D; n += strip) {
            float x[strip_tiles][4];
            hidden(x, p.messages + n);
            fragment z[strip / 16];
#pragma unroll
            for (int j = 0; j < strip_tiles; j++)
#pragma unroll
                for (int k = 0; k < 4; k++) x[j][k] = fast_unit<Gelu>(x[j][k]);
#pragma unroll
            for (int j = 0; j < strip / 16; j++) z[j] = fragment_of(x[2 * j], x[2 * j + 1]);
            begin<Wide>();
            forward_mma<Wide>(o, z, w2, 0, n, n == 0);
            finish<Wide>();
            settle(o);
        }
        const float *gate = p.modulation + (size_t)rows.graph * p.ld_modulation + 2 * D + column;
        const float *c2 = (const float *)(shared + at.c2) + column;
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 by = __ldg((const float4 *)(gate + 16 * j));
            float4 add = *(const float4 *)(c2 + 16 * j);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (!rows.there[k]) continue;
                size_t place = (size_t)rows.row[k] * D + column + 16 * j;
                float4 in = *(const float4 *)(p.e + place);
                const float *first = &o[2 * j][2 * k], *second = &o[2 * j + 1][2 * k];
                *(float4 *)(p.out + place) = make_float4(in.x + (1 + by.x) * (first[0] + add.x),
                                                         in.y + (1 + by.y) * (first[1] + add.y),
                                                         in.z + (1 + by.z) * (second[0] + add.z),
                                                         in.w + (1 + by.w) * (second[1] + add.w));
            }
        }
    }

    __device__ void run() {
        int parity = 0;
        for (int chunk = (int)blockIdx.x + (int)gridDim.x * group; chunk < p.n_chunks;
             chunk += (int)gridDim.x * groups) {
            int first = chunk * p.steps, last = first + p.steps;
            lane_rows coming = rows_of_pair(p.octets, first + warp, last);
            for (int pair = first; pair < last; pair += 4, parity ^= 1) {
                rows = coming;
                fetch(0);
                coming = rows_of_pair(p.octets, pair + 4 + warp, last);
                tile_runs t = runs_of_tile(p.octets, pair, last);
                float *sums =
                    (float *)(shared + at.sums) +
                    (layout<D>::in_tiles ? group * strip_bytes / 4 : (group * 2 + parity) * 4 * D);
                norm(sums);
                prefetch_rows<D>(p.e, coming.row);
                if (layout<D>::in_tiles || p.messages == 0) {
                    group_barrier(1 + group);
                    sum_runs(sums, t);
                }
                if (p.messages > 0) messages(t, 2 * pair, sums);
                update();
            }
        }
    }
};

template <int D, bool Gelu, bool Wide>
__global__ void __launch_bounds__(layout<D>::block_threads, 1)
    lean_forward_kernel(const __grid_constant__ lean_fused p) {
    walker<D, Gelu, Wide> w(p);
    w.stage();
    w.run();
}

template <int D, bool Gelu, bool Wide> bool launch(const lean_fused &p, int processors) {
    int bytes = layout<D>(p.messages).bytes;
    auto kernel = lean_forward_kernel<D, Gelu, Wide>;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
        cudaSuccess)
        return false;
    int blocks = p.n_chunks < processors ? p.n_chunks : processors;
    kernel<<<(unsigned)blocks, layout<D>::block_threads, (size_t)bytes, stream()>>>(p);
    return launched();
}

template <int D> bool launch_unit(const lean_fused &p, int unit, int processors) {
    return unit == WF_UNIT_GELU ? launch<D, true, true>(p, processors)
                                : launch<D, false, true>(p, processors);
}

} // namespace

int lean::processor_count() {
    static int count = 0;
    if (count == 0) cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);
    return count;
}

lean_fused lean::lean_operands(const wf_op *op, const wf_octets *lines, int messages) {
    const wf_tensor *modulation = op->in[1], *w1 = op->in[4];
    return lean_fused{lines->octets,
                      lines->n_octets,
                      lines->n_chunks,
                      lines->steps,
                      data_of(op->in[0]),
                      data_of(op->out[0]),
                      data_of(modulation) + op->column,
                      modulation->ld,
                      data_of(op->in[2]),
                      data_of(op->in[3]),
                      op->in[2]->ld,
                      data_of(w1),
                      data_of(op->in[5]),
                      data_of(op->in[6]),
                      messages,
                      w1->rows - 2 * op->in[0]->cols - messages,
                      lines->n_runs,
                      NULL,
                      NULL};
}

namespace {
/* The kernels take what a multiprocessor of sm_90 has; others work step by step. */
bool has_shared_memory() {
    static int bytes = 0;
    if (bytes == 0) cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    return bytes >= 227 * 1024;
}
} // namespace

bool lean_fused_fits(const wf_op *op) {
    const wf_tensor *e = op->in[0], *modulation = op->in[1], *ad = op->in[2], *w1 = op->in[4];
    int de = e->cols, messages = w1->rows - 2 * de;
    bool widths = de == 32 || de == 64 || de == 128;
    bool aligned = op->column % 4 == 0 && modulation->ld % 4 == 0 && ad->ld % 4 == 0 &&
                   ad->ld == op->in[3]->ld;
    return has_shared_memory() && widths && aligned &&
           messages % (de > 64 ? 4 * strip : strip) == 0 && messages <= 2 * de &&
           op->mode != WF_SUM_ATTENTION && op->unit != WF_UNIT_SINE && op->part->lines[0] != NULL &&
           op->part->n_edges > 0;
}

bool lean_fused_forward(const wf_op *op, wf_arena *arena) {
    const wf_octets *lines = op->part->lines[op->in[0]->cols <= 64];
    const wf_tensor *mean = op->out[1], *to[2] = {op->out[2], op->out[3]};
    int de = op->in[0]->cols, messages = to[0] == NULL ? 0 : op->in[4]->rows - 2 * de;
    lean_fused p = lean_operands(op, lines, messages);
    p.slots = scratch(arena, wf_octets_slots(lines) * (size_t)messages);
    p.run_sums = scratch(arena, (size_t)lines->n_runs * (size_t)de);
    if (p.slots == NULL || p.run_sums == NULL) return false;
    int processors = processor_count();
    bool done = de == 32   ? launch_unit<32>(p, op->unit, processors)
                : de == 64 ? launch_unit<64>(p, op->unit, processors)
                           : launch_unit<128>(p, op->unit, processors);
    if (!done) return false;
    const float *degree = op->mode == WF_SUM_MEAN ? (const float *)op->part->degree : NULL;
    for (int k = 0; k < 2 && messages > 0; k++)
        node_slot_sums(slot_sum_step{op->part, p.slots, messages, messages,
                                     k == 0 ? slots_as_dst : slots_as_src, degree, false,
                                     data_of(to[k]), to[k]->ld, true, lines});
    graph_run_sums(slot_sum_step{op->part, p.run_sums, de, de, 0, NULL, true, data_of(mean),
                                 mean->ld, true, lines});
    return launched();
}

} // namespace wf_gpu
