#include "src/store/quantised_blocks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "choir/core/error.hpp"

namespace choir {
namespace {

constexpr int kSmallBlock = 32, kLargeBlock = 256;

/// The integers of IQ4_NL and IQ4_XS, which lie closer around zero.
constexpr std::array<int, 16> kUnevenSteps{-127, -104, -83, -65, -49, -35, -22, -10,
                                           1,    13,   25,  38,  53,  69,  89,  113};

float half_at(const std::byte* from) {
  f16 value;
  std::memcpy(&value, from, sizeof value);
  return static_cast<float>(value);
}

unsigned byte_at(const std::byte* from, int index) {
  return std::to_integer<unsigned>(from[index]);
}

float signed_byte_at(const std::byte* from, int index) {
  return static_cast<float>(std::to_integer<std::int8_t>(from[index]));
}

float number(unsigned integer) {
  return static_cast<float>(static_cast<int>(integer));
}

// --- blocks of 32 elements ---

/// Four bits of element `i`: the low halves of 16 bytes, then the high ones.
unsigned nibble(const std::byte* q, int i) {
  return byte_at(q, i % 16) >> (i < 16 ? 0 : 4) & 15u;
}

/// Five bits of element `i`, of which the fifth is bit `i` of four bytes.
unsigned five_bits(const std::byte* q, const std::byte* high, int i) {
  return nibble(q, i) | (byte_at(high, i / 8) >> i % 8 & 1u) << 4;
}

void decode_q8_0(const std::byte* block, float* to) {
  const float d = half_at(block);
  for (int i = 0; i < kSmallBlock; ++i) to[i] = d * signed_byte_at(block + 2, i);
}

void decode_q4_0(const std::byte* block, float* to) {
  const float d = half_at(block);
  for (int i = 0; i < kSmallBlock; ++i) to[i] = d * (number(nibble(block + 2, i)) - 8);
}

void decode_q4_1(const std::byte* block, float* to) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < kSmallBlock; ++i) to[i] = d * number(nibble(block + 4, i)) + m;
}

void decode_q5_0(const std::byte* block, float* to) {
  const float d = half_at(block);
  for (int i = 0; i < kSmallBlock; ++i)
    to[i] = d * (number(five_bits(block + 6, block + 2, i)) - 16);
}

void decode_q5_1(const std::byte* block, float* to) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < kSmallBlock; ++i) to[i] = d * number(five_bits(block + 8, block + 4, i)) + m;
}

void decode_iq4_nl(const std::byte* block, float* to) {
  const float d = half_at(block);
  for (int i = 0; i < kSmallBlock; ++i)
    to[i] = d * static_cast<float>(kUnevenSteps[nibble(block + 2, i)]);
}

// --- blocks of 256 elements ---

/// Two bits of element `i`: in each half of the block, bits 0 and 1 of 32 bytes, then bits 2 and 3
/// of the same bytes, and so on.
unsigned two_bits(const std::byte* q, int i) {
  return byte_at(q, 32 * (i / 128) + i % 32) >> 2 * (i % 128 / 32) & 3u;
}

void decode_q2_k(const std::byte* block, float* to) {
  const float d = half_at(block + 80), m = half_at(block + 82);
  for (int i = 0; i < kLargeBlock; ++i) {
    const unsigned both = byte_at(block, i / 16);
    to[i] = d * number(both & 15u) * number(two_bits(block + 16, i)) - m * number(both >> 4);
  }
}

void decode_q3_k(const std::byte* block, float* to) {
  const std::byte* const scales = block + 96;
  const float d = half_at(block + 108);
  for (int i = 0; i < kLargeBlock; ++i) {
    const int group = i / 16;
    const unsigned scale = (byte_at(scales, group % 8) >> 4 * (group / 8) & 15u) |
                           (byte_at(scales, 8 + group % 4) >> 2 * (group / 4) & 3u) << 4;
    const unsigned high = byte_at(block, i % 32) >> i / 32 & 1u;
    to[i] = d * (number(scale) - 32) * (number(two_bits(block + 32, i)) - (high > 0 ? 0 : 4));
  }
}

/// Integer scales of 32 elements in 6 bits each.
struct GroupScales {
  unsigned scale = 0, minimum = 0;
};

GroupScales group_scales(const std::byte* packed, int group) {
  const auto at = [&](int index) { return byte_at(packed, index); };
  if (group < 4) return {at(group) & 63u, at(group + 4) & 63u};
  return {(at(group + 4) & 15u) | at(group - 4) >> 6 << 4,
          at(group + 4) >> 4 | at(group) >> 6 << 4};
}

/// Four bits of element `i`: of each 64 elements the low halves of 32 bytes, then the high ones.
unsigned wide_nibble(const std::byte* q, int i) {
  return byte_at(q, 32 * (i / 64) + i % 32) >> (i % 64 < 32 ? 0 : 4) & 15u;
}

void decode_q4_k(const std::byte* block, float* to) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < kLargeBlock; ++i) {
    const GroupScales group = group_scales(block + 4, i / 32);
    to[i] =
        d * number(group.scale) * number(wide_nibble(block + 16, i)) - m * number(group.minimum);
  }
}

void decode_q5_k(const std::byte* block, float* to) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < kLargeBlock; ++i) {
    const GroupScales group = group_scales(block + 4, i / 32);
    const unsigned high = byte_at(block + 16, i % 32) >> i / 32 & 1u;
    to[i] = d * number(group.scale) * number(wide_nibble(block + 48, i) | high << 4) -
            m * number(group.minimum);
  }
}

void decode_q6_k(const std::byte* block, float* to) {
  const float d = half_at(block + 208);
  for (int i = 0; i < kLargeBlock; ++i) {
    const int half = i / 128, in_half = i % 128;
    const unsigned low = byte_at(block, 64 * half + in_half % 64) >> (in_half < 64 ? 0 : 4) & 15u;
    const unsigned high = two_bits(block + 128, i);
    to[i] = d * signed_byte_at(block + 192, i / 16) * (number(low | high << 4) - 32);
  }
}

void decode_iq4_xs(const std::byte* block, float* to) {
  const float d = half_at(block);
  const unsigned high = byte_at(block, 2) | byte_at(block, 3) << 8;
  for (int i = 0; i < kLargeBlock; ++i) {
    const int group = i / 32;
    const unsigned scale =
        (byte_at(block + 4, group / 2) >> 4 * (group % 2) & 15u) | (high >> 2 * group & 3u) << 4;
    to[i] = d * (number(scale) - 32) *
            static_cast<float>(kUnevenSteps[nibble(block + 8 + 16 * group, i % 32)]);
  }
}

// --- encoders; false if f16 cannot hold a scale ---

/// Stores the nearest f16, which `value` becomes.
bool put_half(std::byte* to, float& value) {
  const f16 stored(value);
  std::memcpy(to, &stored, sizeof stored);
  value = static_cast<float>(stored);
  return std::isfinite(value);
}

bool encode_q8_0(const float* from, std::byte* to) {
  float largest = 0;
  for (int i = 0; i < kSmallBlock; ++i) largest = std::max(largest, std::abs(from[i]));
  float scale = largest / 127;
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (int i = 0; i < kSmallBlock; ++i) {
    const float steps = std::clamp(std::round(from[i] * inverse), -127.0f, 127.0f);
    to[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(steps));
  }
  return put_half(to, scale);
}

/// The element of the largest magnitude becomes -16 steps. Steps are rounded once to f32, as by a
/// fused multiplication and addition.
bool encode_q5_0(const float* from, std::byte* to) {
  const float extreme = *std::max_element(
      from, from + kSmallBlock, [](float a, float b) { return std::abs(a) < std::abs(b); });
  float scale = extreme / -16;
  const double inverse = scale != 0 ? 1 / scale : 0.0f;
  std::fill(to + 2, to + 22, std::byte{0});
  for (int i = 0; i < kSmallBlock; ++i) {
    const auto steps = static_cast<float>(from[i] * inverse + 16.5);
    const auto q = static_cast<unsigned>(std::min(31, static_cast<int>(steps)));
    to[2 + i / 8] |= static_cast<std::byte>(q >> 4 << i % 8);
    to[6 + i % 16] |= static_cast<std::byte>((q & 15u) << (i < 16 ? 0 : 4));
  }
  return put_half(to, scale);
}

/// x is about scale q - minimum, with q from 0 to 15 and a minimum of at least 0.
struct Fit {
  float scale = 0, minimum = 0;
};

std::array<float, kSmallBlock> steps_of(const float* from, float inverse, float minimum) {
  std::array<float, kSmallBlock> steps;
  for (std::size_t i = 0; i < steps.size(); ++i)
    steps[i] = std::clamp(std::nearbyint((from[i] + minimum) * inverse), 0.0f, 15.0f);
  return steps;
}

/// The best scale and minimum for given steps: the solution of the normal equations, or the best
/// scale alone if the minimum would be negative.
Fit fit_to(const float* from, const std::array<float, kSmallBlock>& steps,
           const std::array<float, kSmallBlock>& weights) {
  float w = 0, wq = 0, wqq = 0, wx = 0, wxq = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    w += weights[i];
    wq += weights[i] * steps[i];
    wqq += weights[i] * steps[i] * steps[i];
    wx += weights[i] * from[i];
    wxq += weights[i] * from[i] * steps[i];
  }
  const float determinant = w * wqq - wq * wq;
  if (!(determinant > 0)) return {};
  const Fit both{(w * wxq - wq * wx) / determinant, (wq * wxq - wqq * wx) / determinant};
  return both.minimum >= 0 ? both : Fit{wqq > 0 ? wxq / wqq : 0, 0};
}

/// Tries several step widths around the range of the elements.
Fit best_fit(const float* from) {
  constexpr int kCandidates = 21;
  const auto [low, high] = std::minmax_element(from, from + kSmallBlock);
  const float minimum = std::max(0.0f, -*low), range = *high + minimum;
  if (!(range > 0)) return {0, minimum};
  float squares = 0;
  for (int i = 0; i < kSmallBlock; ++i) squares += from[i] * from[i];
  const float typical = std::sqrt(squares / kSmallBlock);
  std::array<float, kSmallBlock> weights;
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = typical + std::abs(from[i]);
  const auto error_of = [&](const Fit& fit, const std::array<float, kSmallBlock>& steps) {
    float sum = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const float off = fit.scale * steps[i] - fit.minimum - from[i];
      sum += weights[i] * off * off;
    }
    return sum;
  };
  Fit best{range / 15, minimum};
  float least = error_of(best, steps_of(from, 15 / range, minimum));
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    const float most = 14 + 0.1f * static_cast<float>(candidate);
    const auto steps = steps_of(from, most / range, minimum);
    const Fit fit = fit_to(from, steps, weights);
    const float error = error_of(fit, steps);
    if (fit.scale > 0 && error < least) best = fit, least = error;
  }
  return best;
}

void put_group_scales(std::byte* packed, int group, const GroupScales& scales) {
  const auto add = [&](int index, unsigned bits) { packed[index] |= static_cast<std::byte>(bits); };
  if (group < 4) {
    add(group, scales.scale);
    add(group + 4, scales.minimum);
  } else {
    add(group + 4, (scales.scale & 15u) | (scales.minimum & 15u) << 4);
    add(group - 4, scales.scale >> 4 << 6);
    add(group, scales.minimum >> 4 << 6);
  }
}

bool encode_q4_k(const float* from, std::byte* to) {
  constexpr int kGroups = kLargeBlock / kSmallBlock;
  static constexpr float kMost = 63;
  std::array<Fit, kGroups> fits;
  float d = 0, m = 0;
  for (int group = 0; group < kGroups; ++group) {
    const Fit fit = fits[static_cast<std::size_t>(group)] = best_fit(from + group * kSmallBlock);
    d = std::max(d, fit.scale / kMost);
    m = std::max(m, fit.minimum / kMost);
  }
  std::fill(to, to + 144, std::byte{0});
  if (!put_half(to, d) || !put_half(to + 2, m)) return false;
  const auto whole = [](float value, float unit) {
    return unit > 0 ? static_cast<unsigned>(std::min(kMost, std::nearbyint(value / unit))) : 0u;
  };
  for (int group = 0; group < kGroups; ++group) {
    const Fit& fit = fits[static_cast<std::size_t>(group)];
    const GroupScales scales{whole(fit.scale, d), whole(fit.minimum, m)};
    put_group_scales(to + 4, group, scales);
    const float scale = d * number(scales.scale), minimum = m * number(scales.minimum);
    const auto steps = steps_of(from + group * kSmallBlock, scale > 0 ? 1 / scale : 0, minimum);
    std::byte* const q = to + 16 + kSmallBlock * (group / 2);
    for (std::size_t i = 0; i < steps.size(); ++i)
      q[i] |= static_cast<std::byte>(static_cast<unsigned>(steps[i]) << (group % 2 == 0 ? 0 : 4));
  }
  return true;
}

/// The scale of 16 elements by which 32 steps to each side of zero have the smallest weighted
/// error, of several around that of the element of the largest magnitude.
float best_scale(const float* from) {
  constexpr int kElements = 16, kCandidates = 19;
  const float extreme = *std::max_element(
      from, from + kElements, [](float a, float b) { return std::abs(a) < std::abs(b); });
  if (extreme == 0) return 0;
  float best = 0, most = 0;  // the error is least where the explained part is largest
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    const float steps = -(31.1f + 0.1f * static_cast<float>(candidate));
    float product = 0, square = 0;
    for (int i = 0; i < kElements; ++i) {
      const float x = from[i] / extreme, weight = x * x;
      const float q = std::clamp(std::nearbyint(x * steps), -32.0f, 31.0f);
      product += weight * x * q;
      square += weight * q * q;
    }
    const float explained = product * product / square;
    if (explained > most) best = product / square, most = explained;
  }
  return best * extreme;
}

/// Scales may be negative, so that the element of the largest magnitude may have 32 steps.
bool encode_q6_k(const float* from, std::byte* to) {
  constexpr int kGroup = 16, kGroups = kLargeBlock / kGroup;
  std::array<float, kGroups> scales;
  for (int group = 0; group < kGroups; ++group)
    scales[static_cast<std::size_t>(group)] = best_scale(from + group * kGroup);
  float d = *std::max_element(scales.begin(), scales.end(), [](float a, float b) {
    return std::abs(a) < std::abs(b);
  }) / -128;
  std::fill(to, to + 210, std::byte{0});
  if (!put_half(to + 208, d)) return false;
  for (int i = 0; i < kLargeBlock; ++i) {
    const float scale =
        d == 0 ? 0
               : std::clamp(std::nearbyint(scales[static_cast<std::size_t>(i / kGroup)] / d),
                            -128.0f, 127.0f);
    to[192 + i / kGroup] = static_cast<std::byte>(static_cast<std::int8_t>(scale));
    const float step = d * scale;
    const float steps = step == 0 ? 0 : std::clamp(std::nearbyint(from[i] / step), -32.0f, 31.0f);
    const auto q = static_cast<unsigned>(static_cast<int>(steps) + 32);
    const int half = i / 128, in_half = i % 128;
    to[64 * half + in_half % 64] |= static_cast<std::byte>((q & 15u) << (in_half < 64 ? 0 : 4));
    to[128 + 32 * half + in_half % 32] |= static_cast<std::byte>(q >> 4 << 2 * (in_half / 32));
  }
  return true;
}

struct Codec {
  Encoding encoding;
  void (*decode)(const std::byte* block, float* to);
  bool (*encode)(const float* from, std::byte* block);
};
constexpr std::array<Codec, 12> kCodecs{{{Encoding::q8_0, decode_q8_0, encode_q8_0},
                                         {Encoding::q4_0, decode_q4_0, nullptr},
                                         {Encoding::q4_1, decode_q4_1, nullptr},
                                         {Encoding::q5_0, decode_q5_0, encode_q5_0},
                                         {Encoding::q5_1, decode_q5_1, nullptr},
                                         {Encoding::q2_k, decode_q2_k, nullptr},
                                         {Encoding::q3_k, decode_q3_k, nullptr},
                                         {Encoding::q4_k, decode_q4_k, encode_q4_k},
                                         {Encoding::q5_k, decode_q5_k, nullptr},
                                         {Encoding::q6_k, decode_q6_k, encode_q6_k},
                                         {Encoding::iq4_nl, decode_iq4_nl, nullptr},
                                         {Encoding::iq4_xs, decode_iq4_xs, nullptr}}};

const Codec* codec_of(Encoding encoding) {
  const auto* found = std::find_if(kCodecs.begin(), kCodecs.end(),
                                   [&](const Codec& codec) { return codec.encoding == encoding; });
  return found == kCodecs.end() ? nullptr : found;
}

}  // namespace

bool is_quantised(Encoding encoding) {
  return codec_of(encoding) != nullptr;
}

bool can_encode(Encoding encoding) {
  const Codec* codec = codec_of(encoding);
  return codec != nullptr && codec->encode != nullptr;
}

void decode_blocks(const std::byte* from, Encoding encoding, std::int64_t count, float* to) {
  const Codec* codec = codec_of(encoding);
  CHOIR_CHECK(codec != nullptr, "{} is not quantised", name_of(encoding));
  const std::int64_t elements = block_elements(encoding), bytes = encoded_bytes(encoding, elements);
  for (std::int64_t at = 0; at < count; at += elements, from += bytes) codec->decode(from, to + at);
}

std::int64_t encode_blocks(const float* from, std::int64_t count, std::byte* to,
                           Encoding encoding) {
  CHOIR_CHECK(can_encode(encoding), "{} is not written", name_of(encoding));
  const Codec* codec = codec_of(encoding);
  const std::int64_t elements = block_elements(encoding), bytes = encoded_bytes(encoding, elements);
  for (std::int64_t at = 0; at < count; at += elements, to += bytes) {
    const float* const end = from + at + elements;
    const float* const bad =
        std::find_if(from + at, end, [](float x) { return !std::isfinite(x); });
    if (bad != end) return bad - from;
    if (!codec->encode(from + at, to)) return at;
  }
  return -1;
}

}  // namespace choir
