#pragma once
// A model of random weights on one rank, for tests of transcription.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/ref_element.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/fastconformer/transcriber.hpp"

namespace choir::test {

inline ModelInstance::Options options_of(const FastConformerConfig& config, const char* precision) {
  return {.model = config, .precision = precision_of(precision), .seed = 11};
}

struct RandomModel {
  RandomModel(const FastConformerConfig& c, const char* precision, std::size_t arena)
      : config(c),
        mesh(Mesh::planned(Layout(1, 1, 1, 1), 0, 1)),
        instance(options_of(c, precision), device, *mesh, arena) {
    instance.initialise(11);
  }

  /// Logits of the frames of some audio.
  std::vector<double> logits(std::span<const std::int16_t> audio) {
    const auto samples = std::ssize(audio);
    HostBatch host(config, {.samples = 1, .audio_samples = samples, .labels = 1});
    std::copy(audio.begin(), audio.end(), static_cast<std::int16_t*>(host.batch["audio"].data));
    const Tensor out = instance.forward(Mode::generate, host.batch);
    std::vector<double> values(static_cast<std::size_t>(out.count()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = ref::load(out.data, out.dtype, static_cast<std::int64_t>(i));
    return values;
  }

  FastConformerConfig config;
  CpuDevice device;
  std::unique_ptr<Mesh> mesh;
  ModelInstance instance;
};

}  // namespace choir::test
