/* md5: the digest of RFC 1321. Round constants are floor(2^32 |sin(i + 1)|). */
#include "base/md5.h"

#include <stdio.h>

static const uint32_t sines[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391};
static const uint8_t turns[16] = {7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21};

static void add_block(uint32_t state[4], const uint8_t *block) {
    uint32_t word[16], a = state[0], b = state[1], c = state[2], d = state[3];
    for (int i = 0; i < 16; i++)
        word[i] = (uint32_t)block[4 * i] | (uint32_t)block[4 * i + 1] << 8 |
                  (uint32_t)block[4 * i + 2] << 16 | (uint32_t)block[4 * i + 3] << 24;
    for (int i = 0; i < 64; i++) {
        uint32_t mixed;
        int place;
        if (i < 16) mixed = (b & c) | (~b & d), place = i;
        else if (i < 32) mixed = (d & b) | (~d & c), place = (5 * i + 1) % 16;
        else if (i < 48) mixed = b ^ c ^ d, place = (3 * i + 5) % 16;
        else mixed = c ^ (b | ~d), place = 7 * i % 16;
        uint32_t sum = a + mixed + sines[i] + word[place];
        int turn = turns[i / 16 * 4 + i % 4];
        a = d, d = c, c = b;
        b += sum << turn | sum >> (32 - turn);
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
}

void wf_md5_start(wf_md5 *hash) {
    *hash = (wf_md5){.state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476}};
}

void wf_md5_add(wf_md5 *hash, const void *bytes, size_t count) {
    const uint8_t *from = bytes;
    for (size_t i = 0; i < count; i++) {
        hash->block[hash->bytes++ % 64] = from[i];
        if (hash->bytes % 64 == 0) add_block(hash->state, hash->block);
    }
}

void wf_md5_end(wf_md5 *hash, char out[33]) {
    uint64_t bits = 8 * hash->bytes;
    uint8_t pad = 0x80, length[8];
    wf_md5_add(hash, &pad, 1);
    for (pad = 0; hash->bytes % 64 != 56;) wf_md5_add(hash, &pad, 1);
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> 8 * i);
    wf_md5_add(hash, length, 8);
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", (unsigned)(hash->state[i / 4] >> 8 * (i % 4) & 255));
}
