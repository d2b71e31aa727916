#pragma once
// Element types. bf16 is converted with round-to-nearest-even, NaN kept quiet; the same rule in
// kernels.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace choir {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, u16, u8 };

std::size_t size_of(DType type);
std::string_view name_of(DType type);
/// Throws Error for a name that is none of "f64 f32 bf16 f16 i64 i32 u16 u8".
DType dtype_of(std::string_view name);

/// Brain float: the upper half of a float. Storage only; arithmetic happens in float.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float value) : bits(round(value)) {}
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  static std::uint16_t round(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x0040u);
    return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};
static_assert(sizeof(bf16) == 2);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace choir
