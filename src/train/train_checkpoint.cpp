#include "choir/train/train_checkpoint.hpp"

#include <nlohmann/json.hpp>

namespace choir {
namespace {

/// Elements [n*r/size, n*(r+1)/size) of `tensor` are this rank's.
StoredTensor stored(const std::string& name, const TensorView& tensor, Device& device, int rank,
                    int size) {
  const std::int64_t n = tensor.count();
  const std::int64_t first = n * rank / size, last = n * (rank + 1) / size;
  StoredTensor result{.name = name, .dtype = tensor.dtype, .shape = tensor.shape, .pieces = {}};
  if (!device.host_visible()) result.device = &device;
  auto* data = static_cast<std::byte*>(tensor.data) +
               static_cast<std::size_t>(first) * size_of(tensor.dtype);
  if (first < last) result.pieces.push_back({first, last - first, data});
  return result;
}

std::vector<StoredTensor> all_tensors(Engine& engine, Progress& progress, int rank, int size) {
  std::vector<StoredTensor> list;
  Device& device = engine.instance().device();
  for (const Parameter& p : engine.instance().parameters().parameters()) {
    list.push_back(stored("parameters/" + p.name, p.master, device, rank, size));
    list.push_back(
        stored("optimizer/m/" + p.name, engine.optimizer().first_moment(p), device, rank, size));
    list.push_back(
        stored("optimizer/v/" + p.name, engine.optimizer().second_moment(p), device, rank, size));
  }
  for (const State& state : progress.states(engine.options().loss_scaling.dynamic())) {
    StoredTensor tensor{.name = "state/" + state.name,
                        .dtype = state.value.dtype,
                        .shape = state.value.shape,
                        .pieces = {}};
    if (rank == 0 || size == 1) tensor.pieces.push_back({0, state.value.count(), state.value.data});
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
  return all_tensors(engine, progress, data.rank(), data.size());
}

std::vector<StoredTensor> tensors_to_load(Engine& engine, Progress& progress) {
  return all_tensors(engine, progress, 0, 1);
}

std::vector<StoredTensor> parameters_to_load(ModelInstance& instance) {
  std::vector<StoredTensor> list;
  for (const Parameter& p : instance.parameters().parameters())
    list.push_back(stored("parameters/" + p.name, p.master, instance.device(), 0, 1));
  return list;
}

}  // namespace choir
