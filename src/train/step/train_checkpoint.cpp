#include "src/train/step/train_checkpoint.hpp"

#include "choir/nn/parameter.hpp"
#include "src/comm/agreement.hpp"
#include "src/run/stored_averages.hpp"

namespace choir {
namespace {

/// Waits for queued work before the host reads offloaded state.
void settle(ModelInstance& instance) {
  if (instance.storage().offloaded() != nullptr) instance.stream().synchronize();
}

void add_averages(std::vector<StoredTensor>& list, Engine& engine, const WritingShare& share,
                  bool with_state) {
  ModelInstance& instance = engine.instance();
  AveragedWeights& averages = *engine.averages();
  CHOIR_CHECK(!averages.exchanged(), "the averages are in the place of the weights");
  const DType type = instance.storage().precision().gradient;
  const bool outside = instance.storage().offloaded() != nullptr;
  for (const Parameter* p : instance.parameters().all())
    if (p->trainable)
      add_stored(list, std::string(kAverages) + "parameters", *p, type, instance, share,
                 [&](const Parameter& place) {
                   return ParameterElements{averages.average(place), outside};
                 });
  add_statistics(list, instance, share.all, std::string(kAverages), [&](std::size_t norm) {
    const AveragedWeights::Statistics& average = averages.statistics()[norm];
    return std::pair{average.mean, average.variance};
  });
  StoredTensor first{
      .name = std::string(kFirstAverage), .dtype = DType::i64, .shape = {1}, .pieces = {}};
  if (with_state) first.pieces.push_back({0, 1, &averages.first()});
  list.push_back(std::move(first));
}

std::vector<StoredTensor> all_tensors(Engine& engine, Progress& progress, const WritingShare& share,
                                      bool with_state) {
  std::vector<StoredTensor> list;
  ModelInstance& instance = engine.instance();
  const Optimizer& optimizer = engine.optimizer();
  const DType moment = instance.storage().precision().moment;
  const bool outside = instance.storage().offloaded() != nullptr;
  settle(instance);
  for (const Parameter* p : instance.parameters().all()) {
    add_master(list, instance, *p, share);
    if (!p->trainable) continue;
    for (std::size_t i = 0; i < optimizer.moment_names().size(); ++i) {
      if (!optimizer.keeps(i, *p)) continue;
      add_stored(list, fmt::format("optimizer/{}", optimizer.moment_names()[i]), *p, moment,
                 instance, share, [&](const Parameter& place) {
                   return ParameterElements{optimizer.moment(i, place), outside};
                 });
      // A run may continue with moments of the other precision.
      list.back().converts = true;
    }
  }
  add_statistics(list, instance, share.all);
  if (engine.averages() != nullptr) add_averages(list, engine, share, with_state);
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

/// Ranks that hold the same elements divide the writing.
WritingShare share_of_writing(const Sharding& sharding) {
  return sharding.stage() == 0 ? WritingShare{sharding.data().rank(), sharding.data().size()}
                               : WritingShare{sharding.replica(), sharding.replica_count()};
}

}  // namespace

std::vector<StoredTensor> tensors_to_save(Engine& engine, Progress& progress) {
  return all_tensors(engine, progress, share_of_writing(engine.instance().storage().sharding()),
                     engine.mesh().rank() == 0);
}

std::vector<StoredTensor> tensors_to_load(Engine& engine, Progress& progress) {
  return all_tensors(engine, progress, {.all = true}, true);
}

std::vector<StoredTensor> gradient_tensors(Engine& engine, bool owned_only) {
  ModelInstance& instance = engine.instance();
  const ParameterStorage& storage = instance.storage();
  const WritingShare share =
      owned_only ? share_of_writing(storage.sharding()) : WritingShare{.all = true};
  std::vector<StoredTensor> list;
  if (storage.gradients_apart()) settle(instance);
  for (const Parameter* p : instance.parameters().all()) {
    if (!p->trainable) continue;
    add_stored(list, "gradients", *p, storage.precision().gradient, instance, share,
               [&](const Parameter& place) {
                 return ParameterElements{
                     storage.owned_part(storage.gradients(storage.bucket_of(place)), place),
                     storage.gradients_apart()};
               });
  }
  return list;
}

void require_equal_parameters(Engine& engine, const std::string& what) {
  engine.instance().gatherer().complete_update();
  const ParameterStorage& storage = engine.instance().storage();
  Mesh& mesh = engine.mesh();
  // Ranks compare only within their own groups, so all ranks agree after every comparison: a group
  // that failed must not leave the next one waiting. Parameters without another copy are not read.
  const auto compare = [&](Communicator& group, bool whole_only) {
    if (group.size() == 1) return;
    const std::uint64_t mine = storage.digest(whole_only);
    together(mesh.world(), [&] { require_equal(group, mine, what); });
  };
  compare(mesh.host_replicas(), false);
  compare(mesh.host_along(Axis::tensor), true);
}

}  // namespace choir
