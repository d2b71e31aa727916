#include "choir/models/duplex/duplex_stream.hpp"

#include <utility>
#include <vector>

#include "src/models/duplex/duplex.hpp"

namespace choir {

DuplexStream::DuplexStream(ModelInstance& instance)
    : instance_(&instance),
      config_(instance.as<Duplex>().config()),
      audio_(instance, config_.encoder,
             instance.as<Duplex>().make_encoder_state(instance.pass(), instance.hooks())),
      rows_(instance.model().make_state(instance.pass(), instance.hooks(), 1)) {
  begin();
}

void DuplexStream::begin() {
  audio_.begin();
  rows_.begin(instance_->stream());
}

Tensor DuplexStream::on_device(const TensorView& host) {
  Device& device = instance_->device();
  if (device.host_visible()) return Tensor().view(host);
  Tensor there = instance_->arena().allocate(host.dtype, host.shape, "row of a dialogue");
  device.copy_from_host(there.data, host.data, host.bytes());
  return there;
}

Tensor DuplexStream::step(const TensorView& heard, std::int32_t text,
                          std::span<const std::int32_t> codes) {
  CHOIR_CHECK(std::ssize(codes) == config_.codebooks, "{} codes of {} codebooks", codes.size(),
              config_.codebooks);
  CHOIR_CHECK(seen() < most(), "a dialogue of more than {} frames", most());
  std::vector<std::int32_t> row_codes(codes.begin(), codes.end());
  std::int32_t frame = -1;  // row 0 of what is heard
  const Tensor there[] = {on_device({&text, DType::i32, {1}}),
                          on_device({row_codes.data(), DType::i32, {1, config_.codebooks}}),
                          on_device({&frame, DType::i32, {1}})};
  ModelBatch batch;
  batch.samples = batch.tokens = 1;
  batch.add({.name = "text", .view = there[0]});
  batch.add({.name = "codes", .view = there[1]});
  batch.add({.name = "frames", .view = there[2]});
  batch.add({.name = "heard", .view = heard.reshaped({1, config_.encoder.n_embd})});
  instance_->pass().begin(Mode::generate, rows_.next(1), 0);
  Tensor logits = instance_->model().forward(instance_->pass(), 0, {}, batch, instance_->hooks());
  rows_.advance(1);
  return logits;
}

}  // namespace choir
