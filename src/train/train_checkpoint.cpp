#include "choir/train/train_checkpoint.hpp"

#include <nlohmann/json.hpp>

namespace choir {
namespace {

/// Who moves what: several ranks that hold the same elements share them.
struct Share {
  int rank = 0, size = 1;
};

/// `mine` holds the elements of the logical tensor from `first` on that this rank has; of them its
/// share is stored.
StoredTensor stored(const std::string& name, const Parameter& parameter, std::int64_t first,
                    const TensorView& mine, Device& device, const Share& share) {
  const std::int64_t n = mine.count();
  const std::int64_t from = n * share.rank / share.size, to = n * (share.rank + 1) / share.size;
  StoredTensor result{.name = name, .dtype = mine.dtype, .shape = parameter.shape, .pieces = {}};
  if (!device.host_visible()) result.device = &device;
  auto* data =
      static_cast<std::byte*>(mine.data) + static_cast<std::size_t>(from) * size_of(mine.dtype);
  if (from < to) result.pieces.push_back({first + from, to - from, data});
  return result;
}

StoredTensor stored_master(ModelInstance& instance, const Parameter& p, const Share& share) {
  const ParameterStorage& storage = instance.storage();
  return stored("parameters/" + p.name, p, storage.owned(p).first,
                storage.owned_part(storage.masters(storage.bucket_of(p)), p), instance.device(),
                share);
}

std::vector<StoredTensor> all_tensors(Engine& engine, Progress& progress, const Share& share,
                                      bool with_progress) {
  std::vector<StoredTensor> list;
  ModelInstance& instance = engine.instance();
  for (const Parameter& p : instance.parameters().parameters()) {
    const std::int64_t first = instance.storage().owned(p).first;
    list.push_back(stored_master(instance, p, share));
    list.push_back(stored("optimizer/m/" + p.name, p, first, engine.optimizer().first_moment(p),
                          instance.device(), share));
    list.push_back(stored("optimizer/v/" + p.name, p, first, engine.optimizer().second_moment(p),
                          instance.device(), share));
  }
  for (const State& state : progress.states(engine.options().loss_scaling.dynamic())) {
    StoredTensor tensor{.name = "state/" + state.name,
                        .dtype = state.value.dtype,
                        .shape = state.value.shape,
                        .pieces = {}};
    if (with_progress) tensor.pieces.push_back({0, state.value.count(), state.value.data});
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
  const Sharding& sharding = engine.instance().storage().sharding();
  const int rank = sharding.data().rank();
  const Share share = sharding.stage() == 0 ? Share{rank, sharding.data().size()}
                                            : Share{sharding.replica(), sharding.replica_count()};
  return all_tensors(engine, progress, share, rank == 0);
}

std::vector<StoredTensor> tensors_to_load(Engine& engine, Progress& progress) {
  return all_tensors(engine, progress, {}, true);
}

std::vector<StoredTensor> parameters_to_load(ModelInstance& instance) {
  std::vector<StoredTensor> list;
  for (const Parameter& p : instance.parameters().parameters())
    list.push_back(stored_master(instance, p, {}));
  return list;
}

}  // namespace choir
