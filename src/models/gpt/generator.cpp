#include "choir/models/gpt/generator.hpp"

#include <algorithm>

#include "choir/models/gpt/gpt.hpp"
#include "src/infer/host_scores.hpp"
#include "src/infer/stage_chain.hpp"

namespace choir {

Generator::Generator(ModelInstance& instance) : instance_(instance) {}

std::vector<std::int32_t> Generator::generate(std::vector<std::int32_t> tokens, std::int64_t count,
                                              const TokenChoice& choice,
                                              const std::function<void(std::int32_t)>& on_token) {
  CHOIR_CHECK(!tokens.empty(), "generation needs at least one token to start from");
  const GptConfig& config = instance_.as<Gpt>().config();
  TokenChooser chooser(choice, config.vocab_size);
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
  StreamState state = instance_.model().make_state(instance_.pass(), instance_.hooks(), 1);
  const auto block = static_cast<std::size_t>(config.block_size);
  std::size_t fresh = std::min(tokens.size(), block);  // that the model has not seen
  for (std::int64_t i = 0; i < count; ++i) {
    if (static_cast<std::size_t>(state.seen()) + fresh > block) {
      state.begin(instance_.stream());
      fresh = std::max<std::size_t>(1, block / 2);
    }
    const bool chooses =
        feed(state, tokens.data() + tokens.size() - fresh, static_cast<std::int64_t>(fresh),
             [&](const TensorView& row) { to_floats(row, logits); });
    tokens.push_back(agreed(chooses ? chooser.choose(logits, i) : 0));
    fresh = 1;
    if (std::find(choice.stop.begin(), choice.stop.end(), tokens.back()) != choice.stop.end())
      break;
    if (on_token) on_token(tokens.back());
  }
  return tokens;
}

// The last stage has chosen.
std::int32_t Generator::agreed(std::int32_t token) {
  Communicator& stages = instance_.mesh().host_along(Axis::pipeline);
  if (stages.size() > 1) stages.broadcast(&token, sizeof token, stages.size() - 1);
  return token;
}

bool Generator::feed(StreamState& state, const std::int32_t* ids, std::int64_t count,
                     const std::function<void(const TensorView&)>& show) {
  Pass& pass = instance_.pass();
  const Tensor device_ids = instance_.arena().allocate(DType::i32, {count}, "prompt");
  instance_.device().copy_from_host(device_ids.data, ids, device_ids.bytes());
  pass.begin(Mode::generate, state.next(count), 0);
  const Tensor out = forward_through_stages(instance_.model(), pass, token_batch(1, device_ids),
                                            instance_.hooks(), instance_.stages());
  state.advance(count);
  if (out.empty()) return false;
  Device& device = instance_.device();
  if (device.kind() == DeviceKind::null) return true;
  if (device.host_visible()) {
    show(out);
    return true;
  }
  TensorView host = out;
  std::vector<std::byte> memory(out.bytes());
  device.copy_to_host(memory.data(), out.data, memory.size());
  host.data = memory.data();
  show(host);
  return true;
}

std::vector<double> Generator::logits(const std::vector<std::int32_t>& ids) {
  const GptConfig& config = instance_.as<Gpt>().config();
  CHOIR_CHECK(static_cast<std::int64_t>(ids.size()) <= config.block_size, "{} ids", ids.size());
  const auto width = static_cast<std::size_t>(config.vocab_size);
  StreamState state = instance_.model().make_state(instance_.pass(), instance_.hooks(), 1);
  std::vector<double> all;
  for (const std::int32_t& id : ids)
    feed(state, &id, 1, [&](const TensorView& row) {
      all.resize(all.size() + width);
      to_doubles(row, std::span(all).last(width));
    });
  return all;
}

}  // namespace choir
