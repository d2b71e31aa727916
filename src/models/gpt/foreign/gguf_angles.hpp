#pragma once
// Rotary angles that are scaled as Llama 3's, in GGUF: a tensor has what the frequency of each pair
// is divided by; there are no keys for where it comes from.
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "choir/ops/rope.hpp"

namespace choir {

inline constexpr std::string_view kGgufDivisors = "rope_freqs.weight";

/// [head_width / 2]; empty unless angles are scaled so. Pure.
std::vector<float> gguf_divisors(double theta, const ops::RopeScaling& scaling,
                                 std::int64_t head_width);

/// A scaling with these divisors, its `low` 1: only the ratios of `original`, `low` and `high`
/// matter. None when it takes another form, or when fewer than two pairs lie between the two
/// wavelengths, so that they cannot be known. Pure.
std::optional<ops::RopeScaling> scaling_of_divisors(double theta, std::span<const float> divisors);

}  // namespace choir
