#pragma once
// Llama 3's scaling of rotary angles in GGUF: a tensor has the divisor of the frequency of each
// pair; no keys describe its origin.
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "choir/ops/rope.hpp"

namespace choir {

inline constexpr std::string_view kGgufDivisors = "rope_freqs.weight";

/// [head_width / 2]; empty unless angles are scaled in this form. Pure.
std::vector<float> gguf_divisors(double theta, const ops::RopeScaling& scaling,
                                 std::int64_t head_width);

/// A scaling with these divisors, with `low` = 1: only the ratios of `original`, `low` and `high`
/// matter. None if the divisors have another form, or if fewer than two pairs lie between the two
/// wavelengths, so that the ratios are unknown. Pure.
std::optional<ops::RopeScaling> scaling_of_divisors(double theta, std::span<const float> divisors);

}  // namespace choir
