#pragma once
// Output of `choir inspect`, from data that was read before. Pure.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/run/stored_model.hpp"
#include "src/store/open.hpp"

namespace choir {

struct InspectedCheckpoint {
  Checkpoint checkpoint;
  TrainMeta meta;
  Progress progress;
  std::optional<Verification> verification;  ///< with --verify
  /// True for keys of the deck that the family of the model reads; if empty, for all keys.
  std::function<bool(const std::string&)> reads{};

  bool damaged() const { return verification && !verification->good(); }
};
std::string to_text(const InspectedCheckpoint& inspected);
std::string to_json(const InspectedCheckpoint& inspected);

/// One checkpoint in the list of a run directory.
struct CheckpointSummary {
  std::string path;
  std::int64_t step = 0;
  std::string saved_at;  ///< "" if the manifest cannot be read
  std::optional<double> val_loss;
  std::int64_t bytes = 0;
  std::string problem;             ///< "" if the checkpoint is valid
  std::vector<std::string> bases;  ///< files that hold its frozen weights, with their checksums
  bool latest = false;             ///< `latest` points to it
};
/// `verified`: every byte was read, not only the manifests and the sizes.
std::string to_text(const std::string& folder, const std::vector<CheckpointSummary>& list,
                    bool verified);
std::string to_json(const std::string& folder, const std::vector<CheckpointSummary>& list,
                    bool verified);

}  // namespace choir
