/* sha256: the hash of FIPS 180-4, for fingerprints of data and recipes. With the processor's own
 * instructions where it has them: a data set of 200 MB is hashed before each use of it. */
#include "base/io.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes. */
// clang-format off
static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};
// clang-format on

static uint32_t rotate(uint32_t x, int right) { return x >> right | x << (32 - right); }

static void compress(uint32_t state[8], const uint8_t block[64]) {
    uint32_t word[64];
    for (int i = 0; i < 16; i++)
        word[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                  (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t x = word[i - 15], y = word[i - 2];
        uint32_t small0 = rotate(x, 7) ^ rotate(x, 18) ^ x >> 3;
        uint32_t small1 = rotate(y, 17) ^ rotate(y, 19) ^ y >> 10;
        word[i] = word[i - 16] + small0 + word[i - 7] + small1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i++) {
        uint32_t big1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
        uint32_t t1 = h + big1 + ((e & f) ^ (~e & g)) + round_constant[i] + word[i];
        uint32_t big0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
        uint32_t t2 = big0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

static void compress_plain(uint32_t state[8], const uint8_t *bytes, size_t blocks) {
    for (size_t b = 0; b < blocks; b++) compress(state, bytes + 64 * b);
}

#if defined(__x86_64__)
static bool has_sha(void) {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (b >> 29 & 1);
}

/* The instructions keep the state as (a, b, e, f) and (c, d, g, h), highest lane first, and do two
 * rounds each. w[i % 4] holds words 4i .. 4i+3 of the schedule; those of i - 4 .. i - 1 give the
 * next. */
__attribute__((target("sha,sse4.1"))) static void
compress_sha(uint32_t state[8], const uint8_t *bytes, size_t blocks) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xB1);
    __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1B);
    __m128i abef = _mm_alignr_epi8(badc, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, badc, 0xF0);
    for (; blocks > 0; blocks--, bytes += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (i < 4) {
                w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(bytes + 16 * i)),
                                        big_endian);
            } else {
                __m128i last = w[(i + 3) % 4];
                __m128i next = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]),
                                             _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
                w[i % 4] = _mm_sha256msg2_epu32(next, last);
            }
            __m128i add =
                _mm_add_epi32(w[i % 4], _mm_loadu_si128((const __m128i *)(round_constant + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, add);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(add, 0x0E));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static void compress_blocks(uint32_t state[8], const uint8_t *bytes, size_t blocks) {
    if (has_sha()) compress_sha(state, bytes, blocks);
    else compress_plain(state, bytes, blocks);
}
#else
static void compress_blocks(uint32_t state[8], const uint8_t *bytes, size_t blocks) {
    compress_plain(state, bytes, blocks);
}
#endif

void wf_sha256_start(wf_sha256 *hash) {
    *hash = (wf_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                  0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void wf_sha256_add(wf_sha256 *hash, const void *bytes, size_t count) {
    const uint8_t *from = bytes;
    while (count > 0) {
        size_t filled = hash->bytes % 64;
        size_t take = 64 - filled < count ? 64 - filled : count;
        if (take == 64) {
            take = count / 64 * 64;
            compress_blocks(hash->state, from, take / 64);
        } else {
            memcpy(hash->block + filled, from, take);
            if (filled + take == 64) compress_blocks(hash->state, hash->block, 1);
        }
        hash->bytes += take;
        from += take;
        count -= take;
    }
}

void wf_sha256_end(wf_sha256 *hash, char out[65]) {
    uint64_t bits = 8 * hash->bytes;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    static const uint8_t padding[64] = {0x80};
    size_t filled = hash->bytes % 64;
    wf_sha256_add(hash, padding, filled < 56 ? 56 - filled : 120 - filled);
    wf_sha256_add(hash, length, 8);
    static const char digit[] = "0123456789abcdef";
    for (int i = 0; i < 64; i++) out[i] = digit[hash->state[i / 8] >> (28 - 4 * (i % 8)) & 15];
    out[64] = '\0';
}

void wf_sha256_hex(const void *bytes, size_t count, char out[65]) {
    wf_sha256 hash;
    wf_sha256_start(&hash);
    wf_sha256_add(&hash, bytes, count);
    wf_sha256_end(&hash, out);
}
