#pragma once
// Memory of packed parameters: frozen matrices that are kept quantised and exist in the compute
// type only while their layer computes.
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/parallel/sharding/sharding.hpp"

namespace choir {

/// The packed buckets of a rank, whole or with ZeRO 3 this rank's slices. Blocks never cross ranks:
/// slices and parts of a matrix are whole blocks (ParameterSet::pack). Codes and scales of blocks
/// are those of the whole matrix, so that values do not depend on the layout. For this reason each
/// rank that has a part of a matrix is given the whole one, finds its scales, and encodes its own
/// blocks.
///
/// Bytes of a rank for n elements: those of the codes and scales of its blocks, and 4 bytes for
/// each 16,384 elements of the whole matrices with 4-bit codes.
class PackedParameters {
 public:
  /// Local; the parameters are placed, and `sharding` outlives this object.
  PackedParameters(const ParameterSet& parameters, Packing packing, Device& device,
                   const Sharding& sharding);

  /// True if this rank has a part of the logical tensor, of which `p` is the first tile.
  static bool resident(const Parameter& p);
  /// Local. Encodes this rank's part of a logical tensor, given by its first tile. Throws
  /// StorageError if an element is not finite.
  void pack(const Parameter& p, const float* whole);
  /// Decodes the elements of a bucket that this rank keeps.
  void unpack(const Stream& stream, const Bucket& bucket, const TensorView& to) const;

  // The bytes of this rank for a parameter (or tile); may be empty.
  TensorView codes(const Parameter& p) const;
  TensorView scales(const Parameter& p) const;

  std::size_t bytes() const {
    return codes_.bytes() + scales_.bytes() + groups_.bytes() + tables_.bytes();
  }

 private:
  /// Local blocks [first, first + count) of a parameter: rows of `width` blocks that begin at block
  /// origin of the matrix and at every `stride` blocks from there.
  struct Strip {
    std::int64_t first = 0, count = 0, width = 0, stride = 0, origin = 0;
  };
  static std::vector<Strip> strips_of(const Parameter& p);
  const Bucket& bucket_of(const Parameter& p) const {
    return parameters_->buckets()[static_cast<std::size_t>(p.bucket)];
  }
  /// The elements of a bucket that this rank keeps.
  Range kept(const Bucket& bucket) const {
    return sharded_ ? sharding_->slice(bucket) : Range{0, bucket.size};
  }
  /// The kept elements of a parameter, counted from its start, and their place in the memory.
  struct Part {
    Range elements;
    std::int64_t at = 0;
  };
  Part part_of(const Parameter& p) const;
  TensorView codes_at(std::int64_t at, std::int64_t elements) const;
  TensorView scales_at(std::int64_t at, std::int64_t elements) const;
  TensorView groups_of(const Parameter& p) const;

  const ParameterSet* parameters_;
  int bits_;
  Device* device_;
  const Sharding* sharding_;
  bool sharded_;
  Buffer codes_, scales_, groups_, tables_;
  std::unordered_map<const Parameter*, std::vector<Strip>> strips_;  // of each tile
  std::unordered_map<const Parameter*, std::int64_t> groups_at_;     // of each tile
};

}  // namespace choir
