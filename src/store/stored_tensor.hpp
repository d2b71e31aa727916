#pragma once
// The contents of a checkpoint: named logical tensors, described by the ranges of elements that one
// rank has.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "src/store/manifest.hpp"

namespace choir {

/// Elements [first, first + count) of the logical row-major tensor. A save writes them from this
/// rank; a load reads them. `data` belongs to the caller. Padding is not part of a logical tensor.
struct StoredPiece {
  std::int64_t first = 0;
  std::int64_t count = 0;
  void* data = nullptr;
};

/// One logical tensor. Every rank passes the same names, dtypes and shapes in the same order; only
/// the pieces differ, and a rank may have none. '/' in a name makes groups:
/// "optimizer/m/blocks.0.attn.qkv.weight".
struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<StoredPiece> pieces;
  Device* device = nullptr;  ///< device of the pieces; nullptr is host memory
  /// On load: true if reals stored in another type are rounded to this one.
  bool converts = false;
  /// On save: if set, the pieces have no data, and elements [first, first + count) of the tensor
  /// are written to host memory by this function when they are needed, chunk by chunk. The first
  /// and the last elements of a piece are requested a second time, and must not have changed.
  std::function<void(std::int64_t first, std::int64_t count, void* to)> produce{};
  /// On load: if set, the one piece is the whole tensor and has no data; it is read into host
  /// memory, passed to this function, and freed. Such tensors cannot be saved.
  std::function<void(const void* whole)> consume{};
};

/// The metadata saved beside the tensors. The store reads only `step` and `metric`.
struct CheckpointMeta {
  std::int64_t step = 0;
  std::string json;              ///< deck, provenance, sampler integers, seed ...: opaque
  std::optional<double> metric;  ///< smaller is better (validation loss); for Retention::keep_best
  std::string deck_hash;         ///< shown by `inspect`, otherwise unused
  std::string layout;            ///< of the run that saved, "dp 4 x tp 2"; only shown
  Branch branch{};               ///< used on rank 0, which writes the manifest
  /// Tensors that the checkpoint has without storing them; used on rank 0, which sets `relative`.
  std::vector<BaseFile> bases{};
};

}  // namespace choir
