#include "src/run/stored_averages.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/core/error.hpp"

namespace choir {

bool has_averages(const Checkpoint& checkpoint) {
  return checkpoint.manifest.find(kFirstAverage) != nullptr;
}

Checkpoint without_averages(Checkpoint checkpoint) {
  std::erase_if(checkpoint.manifest.tensors,
                [](const TensorRecord& record) { return record.name.starts_with(kAverages); });
  return checkpoint;
}

Checkpoint with_averages(Checkpoint checkpoint) {
  if (!has_averages(checkpoint))
    throw DeckError(
        fmt::format("{} has no averaged weights, which eval.ema (--ema) asks for", checkpoint.path),
        "set eval.ema to false; runs with train.ema > 0 store them");
  std::vector<TensorRecord> averages;
  for (const TensorRecord& record : checkpoint.manifest.tensors) {
    if (!record.name.starts_with(kAverages) || record.name == kFirstAverage) continue;
    averages.push_back(record);
    averages.back().name.erase(0, kAverages.size());
  }
  checkpoint = without_averages(std::move(checkpoint));
  for (TensorRecord& record : checkpoint.manifest.tensors)
    for (const TensorRecord& average : averages)
      if (average.name == record.name) record = average;
  return checkpoint;
}

void remove_averages(std::vector<StoredTensor>& tensors) {
  std::erase_if(tensors,
                [](const StoredTensor& tensor) { return tensor.name.starts_with(kAverages); });
}

}  // namespace choir
