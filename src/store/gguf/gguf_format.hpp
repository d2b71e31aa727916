#pragma once
// Constants of the format that reader and writer share.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "choir/store/encoding.hpp"

namespace choir::gguf {

inline constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::int64_t kAlignment = 32;  // unless general.alignment specifies another
inline constexpr const char* kAlignmentKey = "general.alignment";
inline constexpr std::uint32_t kStringType = 8, kArrayType = 9, kTypes = 13;
inline constexpr int kMostDims = 4;
inline constexpr std::int64_t kLongestName = 64;

constexpr std::int64_t aligned(std::int64_t offset, std::int64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

inline constexpr std::array<std::pair<std::uint32_t, Encoding>, 11> kTensorTypes{
    {{0, Encoding::f32},
     {1, Encoding::f16},
     {2, Encoding::q4_0},
     {3, Encoding::q4_1},
     {8, Encoding::q8_0},
     {24, Encoding::i8},
     {25, Encoding::i16},
     {26, Encoding::i32},
     {27, Encoding::i64},
     {28, Encoding::f64},
     {30, Encoding::bf16}}};

/// std::nullopt for encodings that GGUF lacks.
std::optional<std::uint32_t> tensor_type(Encoding encoding);
/// std::nullopt for types that are not supported.
std::optional<Encoding> tensor_encoding(std::uint32_t type);
/// "Q4_K", or "type 99", for messages.
std::string tensor_type_name(std::uint32_t type);

}  // namespace choir::gguf
