#pragma once
// Quantised blocks of GGML. A block holds 32 or 256 elements as small integers with the scales that
// they share. In this table d and m are scales in f16, S and M are integer scales, q is the integer
// of an element, and a trailing number counts bytes.
//
//   type     elements  bytes  layout                            value of an element
//   Q8_0     32        34     d, q 32                           d q
//   Q4_0     32        18     d, q 16                           d (q - 8)
//   Q4_1     32        20     d, m, q 16                        d q + m
//   Q5_0     32        22     d, high bits 4, q 16              d (q - 16)
//   Q5_1     32        24     d, m, high bits 4, q 16           d q + m
//   Q2_K     256       84     S and M 16, q 64, d, m            d S q - m M
//   Q3_K     256       110    high bits 32, q 64, S 12, d       d S q
//   Q4_K     256       144    d, m, S and M 12, q 128           d S q - m M
//   Q5_K     256       176    d, m, S and M 12, high bits 32,   d S q - m M
//                             q 128
//   Q6_K     256       210    q 128, high bits 64, S 16, d      d S q
//   IQ4_NL   32        18     d, q 16                           d table[q]
//   IQ4_XS   256       136    d, S 6, q 128                     d S table[q]
//
// Products are formed from left to right in f32, so that decoded values equal those of GGML bit for
// bit.

#include <cstddef>
#include <cstdint>

#include "src/store/encoding.hpp"

namespace choir {

/// True for the types of the table.
bool is_quantised(Encoding encoding);
/// True for the quantised types that encode_blocks() writes: Q8_0, Q5_0, Q4_K and Q6_K.
bool can_encode(Encoding encoding);

/// Decodes `count` elements, which must be whole blocks.
void decode_blocks(const std::byte* from, Encoding encoding, std::int64_t count, float* to);

/// Encodes `count` elements, which must be whole blocks. Q8_0 and Q5_0 have the bytes of GGML's own
/// encoder. Q4_K chooses the scale and the minimum of each 32 elements by weighted least squares,
/// and Q6_K the scale of each 16; large elements count more. Returns the index of the first element
/// that is not finite, or of the first of a block whose scale f16 cannot hold; otherwise -1.
std::int64_t encode_blocks(const float* from, std::int64_t count, std::byte* to, Encoding encoding);

}  // namespace choir
