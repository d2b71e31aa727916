#include "kernels/packing/packing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/parallel.hpp"
#include "kernels/dispatch.hpp"

namespace choir {

std::array<float, 256> scale_map() {
  constexpr int kDecades = 7;
  constexpr float kLow = 0.1f, kHigh = 1.0f;
  std::array<float, 256> map{};
  std::size_t count = 0;
  float power = 1e-6f;
  for (int decade = 0; decade < kDecades; ++decade) {
    // The middles of equal intervals of a decade, whose borders are counted from the nearer end.
    const int intervals = 1 << decade;
    const float step = (kHigh - kLow) / static_cast<float>(intervals);
    const auto border = [&](int i) {
      return i < (intervals + 1) / 2 ? kLow + step * static_cast<float>(i)
                                     : kHigh - step * static_cast<float>(intervals - i);
    };
    power = static_cast<float>(std::pow(10.0, decade - kDecades + 1));
    for (int i = 0; i < intervals; ++i) {
      const float middle = power * ((border(i) + border(i + 1)) / 2);
      map[count++] = middle;
      map[count++] = -middle;
    }
  }
  map[count++] = 0;
  map[count++] = 1;
  std::sort(map.begin(), map.end());
  return map;
}

namespace {

/// The index of the nearest value of an ascending table; of two equally near ones the smaller.
template <std::size_t kSize>
std::size_t nearest(const std::array<float, kSize>& table, float x) {
  const auto above = std::lower_bound(table.begin(), table.end(), x);
  if (above == table.begin()) return 0;
  const auto index = static_cast<std::size_t>(above - table.begin());
  if (index == kSize) return kSize - 1;
  return x - table[index - 1] <= table[index] - x ? index - 1 : index;
}

/// In double the product is exact, so a compiler that joins product and sum changes no bit.
float decoded_scale(float map, float deviation, float offset) {
  const double product = static_cast<double>(map) * deviation;
  return static_cast<float>(product + offset);
}

float largest_magnitude(const float* x) {
  float largest = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < kPackedBlock; ++i) {
    const float magnitude = std::abs(x[i]);
    finite = finite && magnitude <= std::numeric_limits<float>::max();
    largest = std::max(largest, magnitude);
  }
  return finite ? largest : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

BlockScales block_scales(int bits, const float* matrix, std::int64_t elements) {
  CHOIR_CHECK(elements % kPackedBlock == 0, "{} elements are not whole blocks", elements);
  const std::int64_t blocks = elements / kPackedBlock;
  BlockScales scales;
  scales.largest.resize(static_cast<std::size_t>(blocks));
  scales.bytes.resize(static_cast<std::size_t>(scale_bytes(bits, elements)));
  cpu::parallel_ranges(blocks, kPackedBlock, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b)
      scales.largest[static_cast<std::size_t>(b)] = largest_magnitude(matrix + b * kPackedBlock);
  });
  if (bits == 8) {
    auto* const to = reinterpret_cast<float*>(scales.bytes.data());
    for (std::size_t b = 0; b < scales.largest.size(); ++b) to[b] = scales.largest[b] / 127;
    return scales;
  }
  static const std::array<float, 256> map = scale_map();
  double sum = 0;
  for (const float x : scales.largest) sum += x;
  const auto offset =
      static_cast<float>(sum / static_cast<double>(std::max<std::int64_t>(1, blocks)));
  scales.groups.assign(static_cast<std::size_t>(group_floats(bits, elements)), 0.0f);
  scales.groups[0] = offset;
  for (std::int64_t at = 0, group = 1; at < blocks; at += kScaleGroup, ++group) {
    const auto first = static_cast<std::size_t>(at);
    const auto last = static_cast<std::size_t>(std::min(blocks, at + kScaleGroup));
    float& deviation = scales.groups[static_cast<std::size_t>(group)];
    for (std::size_t b = first; b < last; ++b)
      deviation = std::max(deviation, std::abs(scales.largest[b] - offset));
    const float inverse = deviation > 0 ? 1 / deviation : 0;
    for (std::size_t b = first; b < last; ++b)
      scales.bytes[b] =
          static_cast<std::byte>(nearest(map, (scales.largest[b] - offset) * inverse));
  }
  return scales;
}

void pack_blocks(int bits, const float* from, const float* largest, std::int64_t blocks,
                 std::byte* to) {
  cpu::parallel_ranges(blocks, kPackedBlock, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      const float* const x = from + b * kPackedBlock;
      std::byte* const codes = to + code_bytes(bits, b * kPackedBlock);
      const float whole = bits == 4 ? largest[b] : largest[b] / 127;
      for (std::int64_t i = 0; i < kPackedBlock; ++i) {
        const float share = whole > 0 ? x[i] / whole : 0.0f;
        if (bits == 8) {
          const float rounded = std::clamp(std::nearbyint(share), -127.0f, 127.0f);
          codes[i] = static_cast<std::byte>(static_cast<std::int8_t>(rounded));
          continue;
        }
        const auto code = static_cast<std::byte>(nearest(kNormalFloats, share));
        codes[i / 2] = i % 2 == 0 ? code << 4 : codes[i / 2] | code;
      }
    }
  });
}

}  // namespace choir

namespace choir::ops {

void unpack(const Stream& stream, const Unpack& args) {
  const std::int64_t n = args.out.count();
  CHOIR_CHECK(args.bits == 4 || args.bits == 8, "codes of {} bits", args.bits);
  CHOIR_CHECK(n % kPackedBlock == 0 && args.width >= 1 && args.first >= 0,
              "{} elements in rows of {} blocks from {}", n, args.width, args.first);
  const bool four = args.bits == 4;
  check_tensor(args.codes, DType::u8, code_bytes(args.bits, n), "codes");
  check_tensor(args.scales, four ? DType::u8 : DType::f32, n / kPackedBlock, "scales");
  if (four) {
    check_tensor(args.groups, DType::f32, args.groups.count(), "groups");
    check_tensor(args.tables, DType::f32, kPackingTables, "tables");
    const std::int64_t last = args.first + n / kPackedBlock - 1;
    const std::int64_t block = args.origin + last / args.width * args.stride + last % args.width;
    CHOIR_CHECK(n == 0 || block / kScaleGroup + 1 < args.groups.count(),
                "block {} is not in {} groups", block, args.groups.count() - 1);
  }
  check_tensor(args.out, args.out.dtype, n, "out");
  stream.count(static_cast<double>(n),
               as_bytes(args.codes) + as_bytes(args.scales) + as_bytes(args.out));
  if (n == 0) return;
  if (on_cuda(stream)) return cuda::unpack(stream, args);
  if (!computes(stream)) return;
  with_element(args.out.dtype, [&](auto t) { cpu::unpack<decltype(t)>(args); });
}

}  // namespace choir::ops

namespace choir::cpu {
namespace {

float scale_of(const ops::Unpack& args, std::int64_t block) {
  if (args.bits == 8) return args.scales.as<float>()[block];
  const std::int64_t local = args.first + block;
  const std::int64_t logical = args.origin + local / args.width * args.stride + local % args.width;
  const float* const groups = args.groups.as<float>();
  return decoded_scale(args.tables.as<float>()[16 + args.scales.as<std::uint8_t>()[block]],
                       groups[1 + logical / kScaleGroup], groups[0]);
}

template <class T>
T element(float x) {
  return T(x);
}

}  // namespace

template <class T>
void unpack(const ops::Unpack& args) {
  const auto* const codes = args.codes.as<std::uint8_t>();
  T* const out = static_cast<T*>(args.out.data);
  const auto of_block = [&](std::int64_t b) {
    const float scale = scale_of(args, b);
    T* const to = out + b * kPackedBlock;
    if (args.bits == 8) {
      const std::uint8_t* const from = codes + b * kPackedBlock;
      for (std::int64_t i = 0; i < kPackedBlock; ++i)
        to[i] = element<T>(static_cast<float>(static_cast<std::int8_t>(from[i])) * scale);
      return;
    }
    std::array<T, 16> values;
    for (std::size_t k = 0; k < values.size(); ++k)
      values[k] = element<T>(kNormalFloats[k] * scale);
    const std::uint8_t* const from = codes + b * (kPackedBlock / 2);
    for (std::int64_t i = 0; i < kPackedBlock / 2; ++i) {
      to[2 * i] = values[from[i] >> 4];
      to[2 * i + 1] = values[from[i] & 15u];
    }
  };
  parallel_ranges(args.out.count() / kPackedBlock, kPackedBlock,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t b = first; b < last; ++b) of_block(b);
                  });
}

template void unpack<double>(const ops::Unpack&);
template void unpack<float>(const ops::Unpack&);
template void unpack<bf16>(const ops::Unpack&);
template void unpack<f16>(const ops::Unpack&);

}  // namespace choir::cpu

namespace choir::ref {

void unpack(const ops::Unpack& args) {
  const auto* const codes = args.codes.as<std::uint8_t>();
  for (std::int64_t i = 0; i < args.out.count(); ++i) {
    const std::int64_t block = i / kPackedBlock;
    double& to = args.out.as<double>()[i];
    if (args.bits == 8) {
      to = double{args.scales.as<float>()[block]} * static_cast<std::int8_t>(codes[i]);
      continue;
    }
    const std::int64_t row = (args.first + block) / args.width,
                       column = (args.first + block) % args.width;
    const std::int64_t group = (args.origin + row * args.stride + column) / kScaleGroup;
    const double deviation = args.groups.as<float>()[1 + group],
                 offset = args.groups.as<float>()[0];
    const double scale = offset + deviation * scale_map()[args.scales.as<std::uint8_t>()[block]];
    const int code = codes[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15;
    to = kNormalFloats[static_cast<std::size_t>(code)] * scale;
  }
}

}  // namespace choir::ref
