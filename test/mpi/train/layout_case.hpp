#pragma once
// A training run in any layout of the available ranks, and its whole state, which is independent of
// the layout.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/train/step/train_checkpoint.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {

/// Layout of an engine; the data axis gets the remaining ranks.
struct GridLayout {
  int pipeline = 1, tensor = 1, context = 1;
  bool sequence = false;
  ZeroOptions zero;
  PipelineOptions cut;

  int data() const { return world_size() / (pipeline * tensor * context); }
  Layout layout() const { return Layout(tensor, context, data(), pipeline); }
  std::string to_string() const {
    return fmt::format("{} sequence={} zero={} group={} {} v={}", layout().to_string(), sequence,
                       zero.stage, zero.group, name_of(cut.schedule), cut.virtual_stages);
  }
};

/// Meshes of the world, each of which is created once.
class Meshes {
 public:
  Mesh& of(const GridLayout& grid) {
    std::unique_ptr<Mesh>& mesh = meshes_[grid.layout().to_string()];
    if (!mesh) mesh = Mesh::over_world(grid.layout(), Transport::automatic);
    return *mesh;
  }

 private:
  std::map<std::string, std::unique_ptr<Mesh>> meshes_;
};

/// `micro_batches`: number of the global batch.
inline EngineOptions laid_out(EngineOptions options, const GridLayout& grid,
                              std::int64_t micro_batches) {
  options.micro_batches = micro_batches / grid.data();
  options.sequence = grid.sequence;
  options.zero = grid.zero;
  options.pipeline = grid.cut;
  return options;
}

/// Logical tensors by name; values are doubles, which represent every stored type.
using LogicalState = std::map<std::string, std::vector<double>>;

/// Elements [piece.first, ...) of `tensor`, at `at`.
inline void read_piece(const StoredTensor& tensor, const StoredPiece& piece, double* at) {
  for (std::int64_t i = 0; i < piece.count; ++i) at[i] = ref::load(piece.data, tensor.dtype, i);
}

/// Masters and moments; every rank contributes the part that it would store. Collective over the
/// mesh, the same result on every rank. Host memory only.
inline LogicalState logical_state(EngineRun& run) {
  Progress progress;
  LogicalState state;
  for (const StoredTensor& tensor : tensors_to_save(run.engine(), progress)) {
    if (tensor.name.starts_with("state/")) continue;
    std::vector<double>& values = state[tensor.name];
    values.assign(static_cast<std::size_t>(tensor.shape.count()), 0.0);
    for (const StoredPiece& piece : tensor.pieces)
      read_piece(tensor, piece, values.data() + piece.first);
    // The values are added as integers, so that adding zeros keeps every bit.
    run.mesh().world().all_reduce(values.data(), values.size(), DType::i64, ReduceOp::sum);
  }
  return state;
}

/// Local check: everything that this rank holds (copies, replicas) is equal to `state`.
inline bool holds(EngineRun& run, const LogicalState& state) {
  Progress progress;
  for (const StoredTensor& tensor : tensors_to_load(run.engine(), progress)) {
    if (tensor.name.starts_with("state/")) continue;
    const auto found = state.find(tensor.name);
    if (found == state.end()) return false;
    for (const StoredPiece& piece : tensor.pieces) {
      std::vector<double> here(static_cast<std::size_t>(piece.count));
      read_piece(tensor, piece, here.data());
      if (std::memcmp(here.data(), found->second.data() + piece.first,
                      here.size() * sizeof(double)) != 0)
        return false;
    }
  }
  return true;
}

/// The first tensor that differs in a bit; "" if none does.
inline std::string first_difference(const LogicalState& a, const LogicalState& b) {
  for (const auto& [name, values] : a) {
    const auto found = b.find(name);
    if (found == b.end() || !same_bits(values, found->second)) return name;
  }
  return a.size() == b.size() ? "" : "number of tensors";
}

inline double distance(const LogicalState& a, const LogicalState& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (const auto& [name, values] : a) {
    const auto found = b.find(name);
    if (found == b.end()) return INFINITY;
    worst = std::max(worst, distance(values, found->second));
  }
  return worst;
}

}  // namespace choir::test
