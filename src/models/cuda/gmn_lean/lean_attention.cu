/* lean_attention: the messages of a lean block under attention, forward, and what backward needs of
 * them.
 *
 *   l = vf.m towards dst, vb.m towards src    alpha = exp(l - max) / total over a node's messages
 *   to_dst, to_src = sums of alpha m          along = dF.F + dR.R of a node
 *   dl = alpha (dS.m - along), S the sum that the message enters
 *   dvf = sum dlf m   dvb = sum dlb m
 * A warp walks through its lists as in lean_forward.cu and keeps all m of a pair in registers, in
 * fp16.
 *   logits    a product of m with four columns: vf and vb in fp16, and the remainder of either
 *   forward   weights are relative to the largest logit: of a bundle towards b, of the segment
 *             so far towards a. A new maximum rescales the sums of the segment. The weights
 *             replace the ones in the matrix whose product with m sums its rows. Partial sums
 *             are in fp32, because along needs that accuracy, with their maximum and sum of
 *             exponentials beside them; node_softmax_sums combines those of a node in the order
 *             of its lists
 *   backward  computes m again; dS.m is a product with the gradients of the 8 nodes a and the 2
 *             nodes b, in fp16, each row scaled by a power of two. The alphas and dl of an edge
 *             go to memory for lean_backward.cu. dv: products of dl (scaled likewise) with m, in
 *             which tile t of eight columns has row t alone, so that 64 columns add up in four
 *             registers; added over all pairs of a warp, then over warps, then over blocks, in
 *             order
 *   D         as forward: four warpgroups at D <= 64, three at D = 128, where m takes 64 of a
 *             lane's 168 registers and some spill
 *   flops     2 M D an edge each way; as products of 16 rows 48 M forward (logits, sums) and 80
 *             M backward (logits, dS.m, dv)
 *   bytes     4D an edge each way, 16 written and read backward; tables as in lean_forward.cu;
 *             partial sums 4M (1/8 + 1/12) written and read; of a node 16M read and 4M written,
 *             of these 2M (1/8 + 1/10) an edge read
 * The dependent instructions of a warp are the limit, as in lean_forward.cu. Partial sums in bf16
 * or fp16 would make the gradients of vf and vb wrong by more than 1 %. */
#include "models/cuda/gmn_lean/lean_attention.cuh"
#include "models/cuda/gmn_lean/lean_walk.cuh"
#include "models/cuda/gmn_edges/edge_softmax.cuh"

namespace wf_gpu {
namespace {

using namespace lean;
using namespace lean::walk;
using namespace softmax;

/* What both directions do. */
template <int D, int MS, bool Gelu, bool Backward>
struct attending : walker<D, MS, false, !Backward> {
    using base = walker<D, MS, false, !Backward>;
    using at = layout<D, MS, false>;
    using base::c;
    using base::fetch_b;
    using base::g;
    using base::own;
    using base::put_b;
    using base::start;

    /* After the walker's shared memory: of every 16 columns, words of 16 lanes. */
    static constexpr int sixteens = MS * strip / 16, vectors = at::bytes,
                         bytes = vectors + sixteens * 128;

    const lean_attention &q;
    fragment m[sixteens];

    __device__ explicit attending(const lean_attention &args) : base(args.f), q(args) {}

    /* vf, vb, their remainders as columns 0 .. 3 of an operand; columns 4 .. 7 are these again. */
    __device__ void stage_vectors() const {
        for (int i = (int)threadIdx.x; i < sixteens * 16; i += (int)blockDim.x) {
            const float *x = q.v[i / 4 % 2] + i / 16 * 16 + i % 4 * 4;
            uint2 words = make_uint2(pack_half(x[0], x[1]), pack_half(x[2], x[3]));
            if (i / 8 % 2 != 0) {
                float2 low = unpack_half(words.x), high = unpack_half(words.y);
                words = make_uint2(pack_half(x[0] - low.x, x[1] - low.y),
                                   pack_half(x[2] - high.x, x[3] - high.y));
            }
            *(uint2 *)(shared + vectors + 8 * i) = words;
        }
        __syncthreads();
    }

    /* m of a pair and its logits: of row g towards dst and src, then of row g + 8. last() is called
     * before the last strip. */
    template <class Last> __device__ void messages(float (&logit)[4], Last last) {
#pragma unroll
        for (int k = 0; k < 4; k++) logit[k] = 0;
#pragma unroll
        for (int s = 0; s < MS; s++) {
            float x[strip / 8][4];
            fragment y[strip / 16];
            if (s + 1 == MS) last();
            start(x, s * strip);
            wait<true>();
            settle(x);
            activate<Gelu>(x, y);
#pragma unroll
            for (int j = 0; j < strip / 16; j++) {
                int place = s * (strip / 16) + j;
                uint2 v = *(const uint2 *)(shared + vectors + 128 * place + 8 * (threadIdx.x % 16));
                m[place] = y[j];
                half_mma(logit, y[j].r, v.x, v.y);
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) logit[k] += shuffle_xor(logit[k], 1);
    }
};

/* --- forward ---------------------------------------------------------------------------------- */
template <int D, int MS, bool Gelu> struct attending_forward : attending<D, MS, Gelu, false> {
    using base = attending<D, MS, Gelu, false>;
    using at = layout<D, MS, false>;
    using base::c;
    using base::column;
    using base::g;
    using base::lane;
    using base::m;
    using base::own;
    using base::q;

    segment_weights run;

    __device__ explicit attending_forward(const lean_attention &args) : base(args) {}

    /* Weights of a pair's messages as the operand that sums them; what the segment's sums are to be
     * scaled by. */
    __device__ float weigh(const bundle_pair &o, int pair, const float (&logit)[4],
                           uint32_t (&pick)[4]) {
        const bool there[2] = {g < o.count[0], g < o.count[1]};
        float to_a[2], to_b[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            to_a[k] = o.from_a ? logit[2 * k + 1] : logit[2 * k];
            to_b[k] = o.from_a ? logit[2 * k] : logit[2 * k + 1];
        }
        float rescale = run.join(o.begins, there, to_a, &pick[0], &pick[2]);
        bundle_weights(there, to_b, pair, o.count, q.tops, &pick[1], &pick[3]);
        if (o.ends) run.leave(q.tops, q.f.n_bundles, o.segment);
        return rescale;
    }

    /* The weighted sums of strip s towards both ends. */
    __device__ void sum_strip(const bundle_pair &o, int pair, int s, const uint32_t (&pick)[4],
                              float rescale) const {
        uint32_t carried = own + at::carried + (uint32_t)(16 * lane + s * (strip / 16) * 512);
        float4 to_b[strip / 16], to_a[strip / 16];
#pragma unroll
        for (int j = 0; j < strip / 16; j++) {
            float4 sum = load_shared(carried + (uint32_t)(512 * j));
            float acc[2][4];
            fragment b = transposed(m[s * (strip / 16) + j]);
            fresh_mma<true>(acc[0], pick, b.r[0], b.r[1]);
            fresh_mma<true>(acc[1], pick, b.r[2], b.r[3]);
            to_a[j] = make_float4(sum.x * rescale + acc[0][0], sum.y * rescale + acc[0][1],
                                  sum.z * rescale + acc[1][0], sum.w * rescale + acc[1][1]);
            store_shared(carried + (uint32_t)(512 * j), to_a[j]);
            to_b[j] = make_float4(acc[0][2], acc[0][3], acc[1][2], acc[1][3]);
        }
        float *partials = q.f.partials + s * strip + column;
        if (g < 2 && (g == 0 ? o.count[0] : o.count[1]) > 0) {
            float *to = partials + (size_t)(uint32_t)(2 * pair + g) * at::messages;
#pragma unroll
            for (int j = 0; j < strip / 16; j++) *(float4 *)(to + 16 * j) = to_b[j];
        }
        if (o.ends) {
            float *to = partials + (size_t)(uint32_t)(q.f.n_bundles + WF_BUNDLE * o.segment + g) *
                                       at::messages;
#pragma unroll
            for (int j = 0; j < strip / 16; j++) *(float4 *)(to + 16 * j) = to_a[j];
        }
    }

    __device__ void walk() {
        base::each_pair([](const bundle_pair &, int) {},
                        [&](const bundle_pair &o, int pair, int, int next) {
                            float logit[4];
                            uint32_t pick[4];
                            base::fetch_b(next);
                            base::messages(logit, [] {});
                            base::put_b();
                            float rescale = weigh(o, pair, logit, pick);
#pragma unroll
                            for (int s = 0; s < MS; s++) sum_strip(o, pair, s, pick, rescale);
                        });
    }
};

/* --- backward --------------------------------------------------------------------------------- */
/* What the edges need of a node: nodes and gradients of lean_attention, a warp a node. */
struct attended_node {
    const float *saved;          /* (2, N): largest logits, totals */
    const float *to[2], *dto[2]; /* (N, ld) */
    int ld, cols, count;
    float4 *nodes;
    uint32_t *gradients;

    /* along is of the rounded gradients: where one message has all the weight it is that one's dS.m
     * to the bit. */
    __device__ void operator()(int node, int lane) const {
        float4 d[2][2];
        float dot = 0, top = 0;
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int col = 4 * lane + 128 * i;
                if (col >= cols) continue;
                float4 x = *(const float4 *)(dto[k] + (size_t)node * ld + col);
                top =
                    fmaxf(fmaxf(top, fmaxf(fabsf(x.x), fabsf(x.y))), fmaxf(fabsf(x.z), fabsf(x.w)));
                d[k][i] = x;
            }
        uint32_t bits = __float_as_uint(warp_max(top));
        float by = power_over(bits);
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int col = 4 * lane + 128 * i;
                if (col >= cols) continue;
                float4 x = scaled(by, d[k][i]);
                float4 s = *(const float4 *)(to[k] + (size_t)node * ld + col);
                uint32_t words[2] = {pack_half(x.x, x.y), pack_half(x.z, x.w)};
                uint32_t *row = gradients + (size_t)(2 * node + k) * (cols / 2) + col / 16 * 8;
                row[col % 16 / 4] = words[0];
                row[col % 16 / 4 + 4] = words[1];
                float2 low = unpack_half(words[0]), high = unpack_half(words[1]);
                dot += low.x * s.x + low.y * s.y + (high.x * s.z + high.y * s.w);
            }
        dot = warp_sum(dot) * power_below(bits);
        float total = saved[count + node];
        if (lane == 0)
            nodes[node] =
                make_float4(saved[node], total > 0 ? 1 / total : 0, dot, power_below(bits));
    }
};

template <int D, int MS, bool Gelu> struct attending_backward : attending<D, MS, Gelu, true> {
    using base = attending<D, MS, Gelu, true>;
    using at = layout<D, MS, false>;
    using base::c;
    using base::g;
    using base::lane;
    using base::m;
    using base::own;
    using base::q;

    static constexpr int words = at::messages / 8; /* of 16 bytes, of a row of gradients */

    uint32_t gradients; /* as base::tables, of rows of gradients where the forward carries sums */
    float dv[MS][4];    /* of tile g of eight columns of a strip: two of dvf, two of dvb */

    __device__ explicit attending_backward(const lean_attention &args) : base(args) {
        bool zeros = lane / 8 % 2 != 0 && lane % 8 >= 2;
        gradients = base::tables + (zeros ? 0u : (uint32_t)at::carried);
#pragma unroll
        for (int s = 0; s < MS; s++)
#pragma unroll
            for (int k = 0; k < 4; k++) dv[s][k] = 0;
    }

    /* A unit of a row of gradients, towards the node as dst or as src, being loaded to row `row` of
     * the warp's. */
    __device__ void fetch_word(int row, int word, int node, bool as_src) const {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         own + (uint32_t)(at::carried + row * at::pitch + 16 * word)),
                     "l"(q.gradients + (size_t)(2 * node + as_src) * words + word)
                     : "memory");
    }
    /* The gradients of a pair's nodes, being loaded. */
    __device__ void fetch_gradients(const bundle_pair &o, int record) const {
        int b[2] = {bundle_pair::word(record, 3), bundle_pair::word(record, 11)};
        __syncwarp(); /* the last pair's have been read */
#pragma unroll
        for (int first = 0; first < 2 * words; first += 32) {
            int i = first + lane;
            if (i < 2 * words)
                fetch_word(WF_BUNDLE + i / words, i % words, i < words ? b[0] : b[1], !o.from_a);
        }
        if (o.begins)
#pragma unroll
            for (int first = 0; first < WF_BUNDLE * words; first += 32) {
                int i = first + lane, k = i / words;
                fetch_word(k, i % words, o.a0 + (k < o.count[0] ? k : 0), o.from_a);
            }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    /* dS.m of both rows of a lane, towards a and towards b, as the gradients are scaled. */
    __device__ void push(float (&of_a)[2], float (&of_b)[2]) const {
        float acc[2][4] = {};
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
#pragma unroll
        for (int j = 0; j < base::sixteens; j++) {
            uint32_t b[4];
            load_matrices(b, gradients + (uint32_t)(32 * j));
            half_mma(acc[0], m[j].r, b[0], b[2]);
            half_mma(acc[1], m[j].r, b[1], b[3]);
        }
        bool odd = g % 2 != 0;
        of_a[0] = shuffle(odd ? acc[0][1] : acc[0][0], 4 * g + g / 2);
        of_a[1] = shuffle(odd ? acc[0][3] : acc[0][2], 4 * g + g / 2);
        of_b[0] = shuffle(acc[1][0], 4 * g);
        of_b[1] = shuffle(acc[1][3], 4 * g);
    }

    /* dv += the pair's dl m; dl: of row g towards dst and src, then of row g + 8. */
    __device__ void add_vectors(const float (&dl)[4]) {
        float most = fmaxf(fmaxf(fabsf(dl[0]), fabsf(dl[1])), fmaxf(fabsf(dl[2]), fabsf(dl[3])));
        uint32_t bits = (uint32_t)__reduce_max_sync(0xffffffffu, (int)__float_as_uint(most));
        float by = power_over(bits), back = power_below(bits);
        uint32_t words[2] = {pack_half(by * dl[0], by * dl[2]), pack_half(by * dl[1], by * dl[3])};
        uint32_t rows[4]; /* of the operand: dst, src of the first bundle, of the second */
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t even = __shfl_sync(0xffffffffu, words[k], 8 * c);
            uint32_t odd = __shfl_sync(0xffffffffu, words[k], 8 * c + 4);
            rows[k] = __byte_perm(even, odd, 0x5410);
            rows[k + 2] = __byte_perm(even, odd, 0x7632);
        }
#pragma unroll
        for (int s = 0; s < MS; s++) {
            float acc[4] = {0, 0, 0, 0};
#pragma unroll
            for (int j = 0; j < strip / 16; j++) {
                fragment b = transposed(m[s * (strip / 16) + j]);
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    bool mine = g == 2 * j + k;
                    const uint32_t a[4] = {mine ? rows[0] : 0u, mine ? rows[1] : 0u,
                                           mine ? rows[2] : 0u, mine ? rows[3] : 0u};
                    half_mma(acc, a, b.r[2 * k], b.r[2 * k + 1]);
                }
            }
#pragma unroll
            for (int k = 0; k < 4; k++) dv[s][k] += back * acc[k];
        }
    }

    __device__ void step(const bundle_pair &o, int record, int next) {
        float logit[4], of_a[2], of_b[2], dl[4];
        float4 at_a, at_b[2];
        int b[2] = {bundle_pair::word(record, 3), bundle_pair::word(record, 11)};
        base::fetch_b(next);
        base::messages(logit, [&] {
            at_a = load_global((const float *)(q.nodes + o.a0 + (g < o.count[0] ? g : 0)));
#pragma unroll
            for (int k = 0; k < 2; k++) at_b[k] = load_global((const float *)(q.nodes + b[k]));
        });
        base::put_b();
        push(of_a, of_b);
        float4 out[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            bool there = g < o.count[k];
            float to_a = o.from_a ? logit[2 * k + 1] : logit[2 * k];
            float to_b = o.from_a ? logit[2 * k] : logit[2 * k + 1];
            float alpha_a = __expf(to_a - at_a.x) * at_a.y;
            float alpha_b = __expf(to_b - at_b[k].x) * at_b[k].y;
            float dl_a = there ? alpha_a * (of_a[k] * at_a.w - at_a.z) : 0;
            float dl_b = there ? alpha_b * (of_b[k] * at_b[k].w - at_b[k].z) : 0;
            dl[2 * k] = o.from_a ? dl_b : dl_a;
            dl[2 * k + 1] = o.from_a ? dl_a : dl_b;
            out[k] = make_float4(o.from_a ? alpha_b : alpha_a, o.from_a ? alpha_a : alpha_b,
                                 dl[2 * k], dl[2 * k + 1]);
        }
        if (c < 2 && g < (c == 0 ? o.count[0] : o.count[1]))
            q.edges[c == 0 ? o.row[0] : o.row[1]] = c == 0 ? out[0] : out[1];
        if (o.count[0] > 0) add_vectors(dl); /* m of padding may be NaN */
    }

    /* The block's sums of dv, its warps' in order. */
    __device__ void leave() const {
        const int cols = at::messages;
        __syncwarp();
        float *mine = (float *)(shared + at::own + threadIdx.x / 32 * at::each + at::carried);
        float *to = mine + g / 2 * 16 + 4 * c + g % 2 * 2;
#pragma unroll
        for (int s = 0; s < MS; s++) {
            *(float2 *)(to + s * strip) = make_float2(dv[s][0], dv[s][1]);
            *(float2 *)(to + s * strip + cols) = make_float2(dv[s][2], dv[s][3]);
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < 2 * cols; i += (int)blockDim.x) {
            float sum = 0;
            for (int w = 0; w < crew<D>::warps; w++)
                sum += ((const float *)(shared + at::own + w * at::each + at::carried))[i];
            q.partial[(size_t)blockIdx.x * (2 * cols) + i] = sum;
        }
    }

    __device__ void walk() {
        base::each_pair(
            [&](const bundle_pair &o, int record) { fetch_gradients(o, record); },
            [&](const bundle_pair &o, int, int record, int next) { step(o, record, next); });
        leave();
    }
};

/* --- launches --------------------------------------------------------------------------------- */
template <class Walker>
__global__ void __launch_bounds__(Walker::threads, 1)
    lean_attention_kernel(const __grid_constant__ lean_attention q) {
    typename Walker::kind w(q);
    w.stage();
    wait_for_previous();
    w.stage_vectors();
    w.walk();
}
/* What a launch is to do. */
template <int D, int MS, bool Gelu, bool Backward> struct errand {
    static constexpr int threads = crew<D>::threads;
    using kind = std::conditional_t<Backward, attending_backward<D, MS, Gelu>,
                                    attending_forward<D, MS, Gelu>>;
};

int blocks_of(const lean_fused &p) {
    int most = processor_count();
    return p.n_tasks < most ? p.n_tasks : most;
}

template <int D, int MS, bool Gelu, bool Backward> bool launch(const lean_attention &q) {
    const int bytes = attending<D, MS, Gelu, Backward>::bytes;
    static_assert(bytes <= 227 * 1024, "what a block may have");
    auto kernel = lean_attention_kernel<errand<D, MS, Gelu, Backward>>;
    start_kernel(kernel, (unsigned)blocks_of(q.f), crew<D>::threads, (size_t)bytes, q);
    return launched();
}
template <int D, int MS, bool Backward> bool launch_activation(const lean_attention &q, int act) {
    return act == WF_TAPE_ACT_GELU ? launch<D, MS, true, Backward>(q)
                                   : launch<D, MS, false, Backward>(q);
}
template <bool Backward> bool launch_widths(const lean_attention &q, const wf_op *op) {
    int de = op->in[0]->cols, strips = q.f.messages / strip;
    if (de == 32) return launch_activation<32, 1, Backward>(q, op->act);
    if (de == 128) return launch_activation<128, 4, Backward>(q, op->act);
    return strips == 1 ? launch_activation<64, 1, Backward>(q, op->act)
                       : launch_activation<64, 2, Backward>(q, op->act);
}

} // namespace

bool lean::attend(const wf_op *op, const lean_attention &a) { return launch_widths<false>(a, op); }

const float4 *lean::attend_backward(const wf_op *op, wf_arena *arena) {
    const wf_tensor *to[2] = {op->out[2], op->out[3]}, *v[2] = {op->in[7], op->in[8]};
    int de = op->in[0]->cols, messages = op->in[4]->rows - 2 * de, nodes = op->part->n_nodes;
    const wf_bundle_table *table = op->part->bundles[de > 64 ? WF_CUT_LONG_3 : WF_CUT_LONG_4];
    lean_attention a = {lean_operands(op, table, messages), {data_of(v[0]), data_of(v[1])}};
    int blocks = blocks_of(a.f);
    float4 *of_nodes = (float4 *)scratch(arena, 4 * (size_t)nodes);
    uint32_t *gradients = (uint32_t *)scratch(arena, (size_t)nodes * (size_t)messages);
    a.edges = (float4 *)scratch(arena, 4 * (size_t)op->part->n_edges);
    a.partial = scratch(arena, (size_t)blocks * (size_t)(2 * messages));
    if (of_nodes == NULL || gradients == NULL || a.edges == NULL || a.partial == NULL) return NULL;
    each_warp(attended_node{(const float *)op->saved,
                            {data_of(to[0]), data_of(to[1])},
                            {grad_of(to[0]), grad_of(to[1])},
                            to[0]->ld,
                            messages,
                            nodes,
                            of_nodes,
                            gradients},
              nodes);
    a.nodes = of_nodes;
    a.gradients = (const uint4 *)gradients;
    if (!launch_widths<true>(a, op)) return NULL;
    add_vector_partials(a.partial, blocks, 2 * messages, messages, v[0], v[1]);
    return a.edges;
}

} // namespace wf_gpu
