#include "choir/train/text/generator.hpp"

#include "choir/train/engine/stage_chain.hpp"

#include <algorithm>

namespace choir {
namespace {

void to_floats(const TensorView& from, std::vector<float>& to) {
  const auto n = to.size();
  if (from.dtype == DType::f64)
    std::copy_n(from.as<double>(), n, to.begin());
  else if (from.dtype == DType::f32)
    std::copy_n(from.as<float>(), n, to.begin());
  else if (from.dtype == DType::bf16)
    std::transform(from.as<bf16>(), from.as<bf16>() + n, to.begin(),
                   [](bf16 x) { return static_cast<float>(x); });
  else
    std::transform(from.as<f16>(), from.as<f16>() + n, to.begin(),
                   [](f16 x) { return static_cast<float>(x); });
}

}  // namespace

/// Keys and values of all layers, in the arena.
struct Generator::Cache {
  explicit Cache(ModelInstance& instance) {
    const GptConfig& c = instance.gpt().config();
    const auto layers = static_cast<std::size_t>(instance.gpt().layers_of_rank());
    const Shape shape{1, c.block_size, instance.gpt().kv_heads_of_rank(), c.head_width()};
    memory.reserve(2 * layers);
    for (std::size_t i = 0; i < layers; ++i) {
      memory.push_back(instance.pass().allocate(shape, "key cache"));
      view.keys.push_back(memory.back());
      memory.push_back(instance.pass().allocate(shape, "value cache"));
      view.values.push_back(memory.back());
    }
    view.capacity = c.block_size;
  }
  std::vector<Tensor> memory;
  KvCache view;
};

Generator::Generator(ModelInstance& instance) : instance_(instance) {}

std::vector<std::int32_t> Generator::generate(std::vector<std::int32_t> tokens, std::int64_t count,
                                              const TokenChoice& choice,
                                              const std::function<void(std::int32_t)>& on_token) {
  CHOIR_CHECK(!tokens.empty(), "generation needs at least one token to start from");
  const GptConfig& config = instance_.gpt().config();
  TokenChooser chooser(choice, config.vocab_size);
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
  Cache cache(instance_);
  const auto block = static_cast<std::size_t>(config.block_size);
  std::size_t fresh = std::min(tokens.size(), block);  // not yet in the cache
  for (std::int64_t i = 0; i < count; ++i) {
    if (static_cast<std::size_t>(cache.view.length) + fresh > block) {
      cache.view.length = 0;
      fresh = std::max<std::size_t>(1, block / 2);
    }
    const bool chooses = feed(cache.view, tokens.data() + tokens.size() - fresh,
                              static_cast<std::int64_t>(fresh), logits);
    tokens.push_back(agreed(chooses ? chooser.choose(logits, i) : 0));
    fresh = 1;
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

bool Generator::feed(KvCache& cache, const std::int32_t* ids, std::int64_t count,
                     std::vector<float>& logits) {
  Pass& pass = instance_.pass();
  const Tensor device_ids = instance_.arena().allocate(DType::i32, {count}, "prompt");
  instance_.device().copy_from_host(device_ids.data, ids, device_ids.bytes());
  pass.begin(Mode::generate,
             {.batch = 1, .tokens = count, .first_position = cache.length, .cache = &cache}, 0);
  const Tensor out = forward_through_stages(instance_.model(), pass, {.inputs = device_ids},
                                            instance_.hooks(), instance_.stages());
  cache.length += count;
  if (out.empty()) return false;
  Device& device = instance_.device();
  if (device.kind() == DeviceKind::null) return true;
  if (device.host_visible()) {
    to_floats(out, logits);
    return true;
  }
  TensorView host = out;
  std::vector<std::byte> memory(out.bytes());
  device.copy_to_host(memory.data(), out.data, memory.size());
  host.data = memory.data();
  to_floats(host, logits);
  return true;
}

}  // namespace choir
