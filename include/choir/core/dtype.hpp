#pragma once
// Element types. Conversions to bf16 and f16 round to nearest even, overflow to infinity and return
// quiet NaNs; kernels follow the same rule.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "choir/core/host_device.hpp"

namespace choir {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, u16, u8 };

std::size_t size_of(DType type);
std::string_view name_of(DType type);
/// Throws Error for a name other than "f64 f32 bf16 f16 i64 i32 u16 u8".
DType dtype_of(std::string_view name);

/// Brain float: the upper half of a float. Storage only; arithmetic happens in float.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  CHOIR_HOST_DEVICE explicit bf16(float value) : bits(round(value)) {}
  CHOIR_HOST_DEVICE explicit operator float() const {
    return bits_as<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  CHOIR_HOST_DEVICE static std::uint16_t round(float value) {
    const auto u = bits_as<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x0040u);
    return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};
static_assert(sizeof(bf16) == 2);

// Processors since 2012 have an instruction for this conversion. Builtins are used because every
// file would otherwise include immintrin.h.
#if defined(__F16C__) && defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define CHOIR_F16_INSTRUCTIONS 1
#endif

/// IEEE binary16: 11 significant bits, normal from 2^-14 to 65504, multiples of 2^-24 below that,
/// infinity from 65520 on. Storage only; arithmetic happens in float.
struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
#if defined(CHOIR_F16_INSTRUCTIONS)
  explicit f16(float value) {
    using Floats = float __attribute__((vector_size(16)));
    constexpr int kNearestEven = 0;
    bits = static_cast<std::uint16_t>(
        __builtin_ia32_vcvtps2ph(Floats{value, 0, 0, 0}, kNearestEven)[0]);
  }
  explicit operator float() const {
    using Halves = short __attribute__((vector_size(16)));
    return __builtin_ia32_vcvtph2ps(Halves{static_cast<short>(bits), 0, 0, 0, 0, 0, 0, 0})[0];
  }
#else
  CHOIR_HOST_DEVICE explicit f16(float value) : bits(round(value)) {}
  CHOIR_HOST_DEVICE explicit operator float() const {
    return widen(bits);
  }
#endif

  /// The conversions in integer arithmetic, bit for bit equal to the instructions.
  CHOIR_HOST_DEVICE static std::uint16_t round(float value) {
    const auto u = bits_as<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    std::uint32_t magnitude;
    if (a > 0x7f800000u) {  // NaN: quiet, the upper payload kept
      magnitude = 0x7e00u | ((a >> 13) & 0x03ffu);
    } else if (a >= 0x477ff000u) {  // 65520, half way from 65504 to 2^16: even is up
      magnitude = 0x7c00u;
    } else if (a >= 0x38800000u) {  // normal: a new bias (127 - 15), 13 bits fewer
      magnitude = (a - 0x38000000u + 0x0fffu + ((a >> 13) & 1u)) >> 13;
    } else {  // the significand in units of 2^-24; rounding up may reach the first normal number
      const std::uint32_t wanted = 126u - (a >> 23), shift = wanted < 31u ? wanted : 31u;
      const std::uint32_t significand = (a & 0x007fffffu) | 0x00800000u;
      magnitude = (significand + (1u << (shift - 1)) - 1u + ((significand >> shift) & 1u)) >> shift;
    }
    return static_cast<std::uint16_t>(sign | magnitude);
  }
  CHOIR_HOST_DEVICE static float widen(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16, a = half & 0x7fffu;
    if (a > 0x7c00u) return bits_as<float>(sign | 0x7fc00000u | (a << 13));
    if (a == 0x7c00u) return bits_as<float>(sign | 0x7f800000u);
    if (a >= 0x0400u) return bits_as<float>(sign | ((a << 13) + 0x38000000u));
    const float magnitude = static_cast<float>(a) * 0x1p-24f;  // exact, a normal float or 0
    return bits_as<float>(sign | bits_as<std::uint32_t>(magnitude));
  }
};
static_assert(sizeof(f16) == 2);

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
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
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
