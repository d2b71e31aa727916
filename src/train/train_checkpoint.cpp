#include "choir/train/train_checkpoint.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "choir/comm/agreement.hpp"
#include "choir/nn/shard.hpp"

namespace choir {
namespace {

/// Pieces [n*part/parts, n*(part+1)/parts) of what this rank owns of a parameter's tensor, counted
/// in elements; `all`: of everything that it holds.
struct Share {
  std::int64_t part = 0, parts = 1;
  bool all = false;
};

StoredTensor stored(const std::string& name, const Parameter& p, const TensorView& local,
                    Device& device, const Share& share) {
  StoredTensor result{.name = name, .dtype = local.dtype, .shape = p.shape, .pieces = {}};
  if (!device.host_visible()) result.device = &device;
  std::vector<ShardRun> runs = shard_runs(p);
  if (!share.all) std::erase_if(runs, [](const ShardRun& run) { return !run.owned; });
  std::int64_t n = 0, at = 0;
  for (const ShardRun& run : runs) n += run.count;
  const std::int64_t first = n * share.part / share.parts;
  const std::int64_t last = n * (share.part + 1) / share.parts;
  for (const ShardRun& run : runs) {
    const std::int64_t begin = std::max(first, at) - at, end = std::min(last, at + run.count) - at;
    if (begin < end)
      result.pieces.push_back(
          {run.logical + begin, end - begin,
           static_cast<std::byte*>(local.data) +
               static_cast<std::size_t>(run.local + begin) * size_of(local.dtype)});
    at += run.count;
  }
  return result;
}

std::vector<StoredTensor> all_tensors(Engine& engine, Progress& progress, const Share& share,
                                      bool with_state) {
  std::vector<StoredTensor> list;
  Device& device = engine.instance().device();
  for (const Parameter& p : engine.instance().parameters().parameters()) {
    list.push_back(stored("parameters/" + p.name, p, p.master, device, share));
    list.push_back(
        stored("optimizer/m/" + p.name, p, engine.optimizer().first_moment(p), device, share));
    list.push_back(
        stored("optimizer/v/" + p.name, p, engine.optimizer().second_moment(p), device, share));
  }
  for (const State& state : progress.states(engine.options().loss_scaling.dynamic())) {
    StoredTensor tensor{.name = "state/" + state.name,
                        .dtype = state.value.dtype,
                        .shape = state.value.shape,
                        .pieces = {}};
    if (with_state) tensor.pieces.push_back({0, state.value.count(), state.value.data});
    list.push_back(std::move(tensor));
  }
  return list;
}

}  // namespace

std::vector<State> Progress::states(bool dynamic_loss_scale) {
  const auto scalar = [](void* data, DType type) { return TensorView{data, type, {1}}; };
  std::vector<State> list{{"step", scalar(&step, DType::i64)},
                          {"updates", scalar(&updates, DType::i64)},
                          {"consumed_samples", scalar(&consumed_samples, DType::i64)},
                          {"skipped_in_a_row", scalar(&skipped_in_a_row, DType::i64)},
                          {"best_val_loss", scalar(&best_val_loss, DType::f64)}};
  if (dynamic_loss_scale) {
    list.push_back({"loss_scale", scalar(&loss_scale, DType::f64)});
    list.push_back({"loss_scale_good_steps", scalar(&good_steps, DType::i64)});
  }
  return list;
}

std::string TrainMeta::to_json() const {
  nlohmann::ordered_json json;
  json["deck"] = nlohmann::ordered_json::parse(deck);
  if (!vocabulary.empty()) json["vocabulary"] = nlohmann::ordered_json::parse(vocabulary);
  json["vocab_size"] = vocab_size;
  json["provenance"] = nlohmann::ordered_json::parse(provenance);
  return json.dump(1);
}

TrainMeta TrainMeta::parse(const std::string& text, const std::string& path) {
  try {
    const auto json = nlohmann::ordered_json::parse(text);
    TrainMeta meta;
    meta.deck = json.at("deck").dump(1);
    if (json.contains("vocabulary")) meta.vocabulary = json.at("vocabulary").dump();
    meta.vocab_size = json.at("vocab_size").get<std::int64_t>();
    meta.provenance = json.at("provenance").dump();
    return meta;
  } catch (const nlohmann::json::exception& error) {
    throw StorageError(
        "the description in '" + path + "' is not of a training run: " + error.what(),
        "was this checkpoint written by choir train?");
  }
}

std::vector<StoredTensor> tensors_to_save(Engine& engine, Progress& progress) {
  const Communicator& data = engine.mesh().along(Axis::data);
  return all_tensors(engine, progress, {.part = data.rank(), .parts = data.size()},
                     engine.mesh().rank() == 0);
}

std::vector<StoredTensor> tensors_to_load(Engine& engine, Progress& progress) {
  return all_tensors(engine, progress, {.all = true}, true);
}

std::vector<StoredTensor> parameters_to_load(ModelInstance& instance) {
  std::vector<StoredTensor> list;
  for (const Parameter& p : instance.parameters().parameters())
    list.push_back(stored("parameters/" + p.name, p, p.master, instance.device(), {.all = true}));
  return list;
}

void require_equal_parameters(Engine& engine, const std::string& what) {
  const ParameterStorage& storage = engine.instance().storage();
  Mesh& mesh = engine.mesh();
  // On all ranks alike, though each compares with its own groups only.
  together(mesh.world(), [&] {
    require_equal(mesh.host_along(Axis::data), storage.digest(), what);
    require_equal(mesh.host_along(Axis::tensor), storage.digest(true), what);
  });
}

}  // namespace choir
