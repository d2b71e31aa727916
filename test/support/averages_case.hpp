#pragma once
// The tensors that an engine stores, by name, for tests of averaged weights on any device.
#include <map>
#include <string>
#include <vector>

#include "src/run/stored_averages.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {

using ByName = std::map<std::string, std::vector<double>>;

/// All stored tensors with elements on this rank, which must hold them whole.
inline ByName stored_values(Engine& engine) {
  engine.instance().stream().synchronize();
  Progress progress;
  ByName all;
  for (const StoredTensor& tensor : tensors_to_load(engine, progress)) {
    std::vector<double>& values = all[tensor.name];
    values.resize(static_cast<std::size_t>(tensor.shape.count()));
    for (const StoredPiece& piece : tensor.pieces) {
      std::vector<std::byte> host(static_cast<std::size_t>(piece.count) * size_of(tensor.dtype));
      if (tensor.device != nullptr)
        tensor.device->copy_to_host(host.data(), piece.data, host.size());
      else
        std::memcpy(host.data(), piece.data, host.size());
      if (tensor.dtype == DType::i64) {
        std::int64_t whole = 0;
        std::memcpy(&whole, host.data(), sizeof whole);
        values[0] = static_cast<double>(whole);
        continue;
      }
      for (std::int64_t i = 0; i < piece.count; ++i)
        values[static_cast<std::size_t>(piece.first + i)] = ref::load(host.data(), tensor.dtype, i);
    }
  }
  return all;
}

/// The averages after a step, by the formula, from those before it and the weights after it.
inline void average_into(ByName& averages, const ByName& stored, double decay) {
  for (const auto& [name, values] : stored) {
    if (!name.starts_with(kAverages) || name == kFirstAverage) continue;
    const std::vector<double>& weights = stored.at(name.substr(kAverages.size()));
    const auto [average, fresh] = averages.try_emplace(name, weights);
    for (std::size_t i = 0; i < weights.size() && !fresh; ++i)
      average->second[i] = decay * average->second[i] + (1 - decay) * weights[i];
  }
}

}  // namespace choir::test
