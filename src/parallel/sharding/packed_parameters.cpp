#include "src/parallel/sharding/packed_parameters.hpp"

#include <algorithm>
#include <cmath>

#include "choir/core/error.hpp"
#include "kernels/packing/packing.hpp"

namespace choir {

// The runs of a part are those of a few sections of rows, or equal runs at equal distances.
std::vector<PackedParameters::Strip> PackedParameters::strips_of(const Parameter& p) {
  std::vector<Strip> strips;
  for (const ShardRun& run : joined_runs(p)) {
    const std::int64_t first = run.local / kPackedBlock, count = run.count / kPackedBlock,
                       origin = run.logical / kPackedBlock;
    if (!strips.empty()) {
      Strip& last = strips.back();
      const std::int64_t rows = last.count / last.width;
      const bool continues = last.first + last.count == first && count == last.width;
      const std::int64_t stride = rows == 1 ? origin - last.origin : last.stride;
      if (continues && stride > 0 && origin == last.origin + rows * stride) {
        last.stride = stride;
        last.count += count;
        continue;
      }
    }
    strips.push_back({first, count, count, count, origin});
  }
  return strips;
}

bool PackedParameters::resident(const Parameter& p) {
  bool any = false;
  for (const Parameter* tile = &p; tile != nullptr; tile = tile->next_tile)
    any = any || tile->resident();
  return any;
}

PackedParameters::PackedParameters(const ParameterSet& parameters, Packing packing, Device& device,
                                   const Sharding& sharding)
    : parameters_(&parameters),
      bits_(packing == Packing::nf4 ? 4 : 8),
      device_(&device),
      sharding_(&sharding),
      sharded_(sharding.values_sharded()) {
  const std::int64_t elements = parameters.packed_size() / (sharded_ ? sharding.slices() : 1);
  std::int64_t groups = 0;
  for (const Parameter* p : parameters.all()) {
    if (!p->packed || !resident(*p)) continue;
    for (const Parameter* tile = p; tile != nullptr; tile = tile->next_tile) {
      if (!tile->resident()) continue;
      strips_[tile] = strips_of(*tile);
      groups_at_[tile] = groups;
    }
    groups += group_floats(bits_, p->count());
  }
  const auto zeroed = [&](Buffer& memory, std::int64_t bytes) {
    memory = Buffer(device, static_cast<std::size_t>(bytes));
    if (bytes > 0) device.zero(memory.data(), memory.bytes());
  };
  zeroed(codes_, code_bytes(bits_, elements));
  zeroed(scales_, scale_bytes(bits_, elements));
  if (bits_ == 8) return;
  zeroed(groups_, groups * static_cast<std::int64_t>(sizeof(float)));
  std::array<float, ops::kPackingTables> tables{};
  std::copy(kNormalFloats.begin(), kNormalFloats.end(), tables.begin());
  const std::array<float, 256> map = scale_map();
  std::copy(map.begin(), map.end(), tables.begin() + kNormalFloats.size());
  zeroed(tables_, sizeof tables);
  device.copy_from_host(tables_.data(), tables.data(), sizeof tables);
}

PackedParameters::Part PackedParameters::part_of(const Parameter& p) const {
  const Bucket& bucket = bucket_of(p);
  const Range mine = kept(bucket), here = overlap(mine, {p.offset, p.local_count()});
  if (here.count == 0) return {};
  const std::int64_t start = bucket.offset / (sharded_ ? sharding_->slices() : 1);
  return {{here.first - p.offset, here.count}, start + here.first - mine.first};
}

TensorView PackedParameters::codes_at(std::int64_t at, std::int64_t elements) const {
  auto* const memory = static_cast<std::byte*>(codes_.data());
  return {memory + code_bytes(bits_, at), DType::u8, {code_bytes(bits_, elements)}};
}

TensorView PackedParameters::scales_at(std::int64_t at, std::int64_t elements) const {
  auto* const memory = static_cast<std::byte*>(scales_.data());
  return {memory + scale_bytes(bits_, at),
          bits_ == 4 ? DType::u8 : DType::f32,
          {elements / kPackedBlock}};
}

TensorView PackedParameters::groups_of(const Parameter& p) const {
  if (bits_ == 8) return {};
  return {static_cast<float*>(groups_.data()) + groups_at_.at(&p),
          DType::f32,
          {group_floats(bits_, p.shape.count())}};
}

TensorView PackedParameters::codes(const Parameter& p) const {
  const Part part = part_of(p);
  return codes_at(part.at, part.elements.count);
}

TensorView PackedParameters::scales(const Parameter& p) const {
  const Part part = part_of(p);
  return scales_at(part.at, part.elements.count);
}

void PackedParameters::pack(const Parameter& p, const float* whole) {
  const BlockScales scales = block_scales(bits_, whole, p.count());
  const auto bad = std::ranges::find_if(scales.largest, [](float x) { return std::isnan(x); });
  if (bad != scales.largest.end())
    throw StorageError(fmt::format("'{}' has elements that are not finite, from block {} of {} on",
                                   p.name, bad - scales.largest.begin(), kPackedBlock),
                       "choose another base, or an earlier checkpoint of it");
  const auto to_device = [&](const TensorView& to, const void* from) {
    if (to.count() > 0) device_->copy_from_host(to.data, from, to.bytes());
  };
  std::vector<std::byte> codes, bytes;
  for (const Parameter* tile = &p; tile != nullptr; tile = tile->next_tile) {
    if (!tile->resident()) continue;
    if (bits_ == 4) to_device(groups_of(*tile), scales.groups.data());
    const Part part = part_of(*tile);
    const std::int64_t first = part.elements.first / kPackedBlock;
    codes.assign(static_cast<std::size_t>(code_bytes(bits_, part.elements.count)), std::byte{0});
    bytes.assign(static_cast<std::size_t>(scale_bytes(bits_, part.elements.count)), std::byte{0});
    const std::int64_t width = scale_bytes(bits_, kPackedBlock);
    for (const Strip& strip : strips_.at(tile)) {
      const Range own =
          overlap({strip.first, strip.count}, {first, part.elements.count / kPackedBlock});
      for (std::int64_t block = own.first; block < own.end();) {
        const std::int64_t local = block - strip.first, column = local % strip.width;
        const std::int64_t count = std::min(strip.width - column, own.end() - block);
        const std::int64_t logical = strip.origin + local / strip.width * strip.stride + column;
        pack_blocks(bits_, whole + logical * kPackedBlock, scales.largest.data() + logical, count,
                    codes.data() + code_bytes(bits_, (block - first) * kPackedBlock));
        std::copy_n(scales.bytes.data() + logical * width, count * width,
                    bytes.data() + (block - first) * width);
        block += count;
      }
    }
    to_device(codes_at(part.at, part.elements.count), codes.data());
    to_device(scales_at(part.at, part.elements.count), bytes.data());
  }
}

void PackedParameters::unpack(const Stream& stream, const Bucket& bucket,
                              const TensorView& to) const {
  const Range mine = kept(bucket);
  CHOIR_CHECK(to.count() == mine.count, "{} elements of bucket {}, not {}", to.count(), bucket.name,
              mine.count);
  for (const Parameter* p : bucket.parameters) {
    const Part part = part_of(*p);
    const Range blocks{part.elements.first / kPackedBlock, part.elements.count / kPackedBlock};
    for (const Strip& strip : strips_.at(p)) {
      const Range own = overlap({strip.first, strip.count}, blocks);
      if (own.count == 0) continue;
      const std::int64_t elements = own.count * kPackedBlock;
      const std::int64_t at = part.at + (own.first - blocks.first) * kPackedBlock;
      ops::unpack(
          stream,
          {.bits = bits_,
           .codes = codes_at(at, elements),
           .scales = scales_at(at, elements),
           .groups = groups_of(*p),
           .tables = bits_ == 4 ? TensorView{tables_.data(), DType::f32, {ops::kPackingTables}}
                                : TensorView{},
           .first = own.first - strip.first,
           .width = strip.width,
           .stride = strip.stride,
           .origin = strip.origin,
           .out = to.slice(p->offset + own.first * kPackedBlock - mine.first, elements)});
    }
  }
}

}  // namespace choir
