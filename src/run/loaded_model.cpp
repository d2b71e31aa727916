#include "src/run/loaded_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "choir/core/error.hpp"
#include "choir/models/family.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/json_value.hpp"
#include "src/run/null_instance.hpp"
#include "src/run/stored_averages.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/finite.hpp"
#include "src/store/open.hpp"

namespace choir {
namespace {

/// Sets the global batch that the run derived from its ranks, because eval.batches counts batches
/// of this size in `choir eval`, too.
void restore_global_batch(Deck& deck, const std::string& resolved) {
  constexpr const char* kKey = "train.global_batch_size";
  if (deck.train.global_batch_size != 0) return;
  const nlohmann::json document = parsed_json(resolved);
  const auto derived = document.find("derived");
  if (derived == document.end() || !derived->is_object()) return;
  const auto size = derived->find(kKey);
  if (size == derived->end() || !size->is_number_integer()) return;
  const auto batch = size->get<std::int64_t>();
  if (batch < 1 || batch > std::numeric_limits<int>::max()) return;
  deck.train.global_batch_size = static_cast<int>(batch);
  deck.mark_derived(kKey);
}

bool overrides_key(const std::vector<std::string>& overrides, std::string_view key) {
  return std::ranges::any_of(overrides, [&](const std::string& word) {
    return word.starts_with(key) && word.size() > key.size() &&
           (word[key.size()] == '=' || word[key.size()] == '.');
  });
}

/// True if the overrides give data.validation as a whole, with sets. A set by its name,
/// data.validation.NAME, joins the others.
bool gives_sets(const std::vector<std::string>& overrides) {
  return std::ranges::any_of(overrides, [](const std::string& word) {
    constexpr std::string_view kSets = "data.validation=";
    return word.starts_with(kSets) && word.find(':', kSets.size()) != std::string::npos;
  });
}

/// The validation data of a resolved deck that the overrides replace: the names of the sets in
/// data.validation with data.val alone, and data.val with data.validation alone.
ReplacedSets replaced_sets_of(const std::string& resolved,
                              const std::vector<std::string>& overrides) {
  ReplacedSets replaced;
  const bool val = overrides_key(overrides, "data.val");
  if (val == gives_sets(overrides) || (val && overrides_key(overrides, "data.validation")))
    return replaced;
  const nlohmann::json document = parsed_json(resolved);
  const auto data = document.find("data");
  if (data == document.end() || !data->is_object()) return replaced;
  const auto sets = data->find(val ? "validation" : "val");
  if (sets == data->end()) return replaced;
  replaced.by = val ? "data.val" : "data.validation";
  replaced.empty = val ? "data.validation={}" : "data.val=[]";
  if (val && sets->is_object())
    for (const auto& [name, set] : sets->items()) replaced.names.push_back(name);
  if (!val && sets->is_array())
    for (const nlohmann::json& set : *sets)
      if (set.is_string()) replaced.names.push_back(set.get<std::string>());
  return replaced;
}

/// The deck of a checkpoint with overrides. The device and the transport of its training are
/// ignored, because inference may run elsewhere; the vocabulary is that of the training data.
Deck deck_of(const FamilyTable& families, const Checkpoint& checkpoint, const TrainMeta& meta,
             const std::vector<std::string>& overrides) {
  std::vector<std::string> words = overrides;
  for (const char* elsewhere :
       {"device=auto", "parallel.transport=auto", "parallel.share_device=false"}) {
    const std::string key(elsewhere, std::strchr(elsewhere, '=') + 1);
    if (std::none_of(overrides.begin(), overrides.end(),
                     [&](const std::string& word) { return word.starts_with(key); }))
      words.push_back(elsewhere);
  }
  Deck deck = parse_deck(families, meta.deck, checkpoint.path + " (deck)", words);
  deck.family().vocab_size(deck) = meta.vocab_size;
  restore_global_batch(deck, meta.deck);
  return deck;
}

}  // namespace

std::unique_ptr<Mesh> inference_mesh(MpiSession& session, int tensor) {
  if (session.size() % tensor != 0) {
    DeckError error(fmt::format("--tensor {} does not divide {} ranks", tensor, session.size()),
                    fmt::format("start a multiple of {} ranks", tensor));
    error.set_agreed_ranks(session.size());  // all ranks have the same arguments
    throw error;
  }
  return Mesh::over_world(Layout(tensor, 1, session.size() / tensor, 1), Transport::automatic);
}

std::vector<std::string> with_ema(std::vector<std::string> overrides, bool ema) {
  if (ema) overrides.emplace_back("eval.ema=true");
  return overrides;
}

LoadedModel open_model(const FamilyTable& families, const std::string& path,
                       const std::string& precision, Mesh& mesh,
                       const std::vector<std::string>& overrides) {
  LoadedModel loaded;
  loaded.checkpoint = open_checkpoint(path, mesh.world());
  const TrainMeta meta = TrainMeta::parse(loaded.checkpoint.json, loaded.checkpoint.path);
  std::vector<std::string> words = overrides;
  if (const ReplacedSets replaced = replaced_sets_of(meta.deck, overrides); !replaced.names.empty())
    words.push_back(replaced.empty);
  loaded.deck = deck_of(families, loaded.checkpoint, meta, words);
  if (loaded.deck.eval.ema)
    together(mesh.world(), [&] { loaded.checkpoint = with_averages(loaded.checkpoint); });
  loaded.vocabulary = meta.vocabulary;
  together(mesh.world(), [&] {
    if (!precision.empty()) loaded.deck.train.precision = precision_named(precision);
    const ModelConfig model = model_of(loaded.deck);
    const int ranks = mesh.layout().size(Axis::tensor);
    for (const KeyProblem& problem : model.family().check_tensor_size(model, ranks))
      throw DeckError(problem.text, "--tensor sets parallel.tensor");
  });
  return loaded;
}

ReplacedSets replaced_sets(const LoadedModel& loaded, const std::vector<std::string>& overrides) {
  const Checkpoint& checkpoint = loaded.checkpoint;
  return replaced_sets_of(TrainMeta::parse(checkpoint.json, checkpoint.path).deck, overrides);
}

ModelInstance::Options inference_options(const LoadedModel& loaded) {
  // A model that was too large for one rank in training is sharded here too.
  const ZeroOptions zero{.stage = loaded.deck.parallel.zero == 3 ? 3 : 0,
                         .prefetch = loaded.deck.parallel.zero_prefetch};
  return {.model = model_of(loaded.deck),
          .precision = with_packing(precision_of(name_of(loaded.deck.train.precision)),
                                    packing_of(loaded.deck)),
          .seed = static_cast<std::uint64_t>(loaded.deck.run.seed),
          .zero = zero,
          .freezing = {.freeze = loaded.deck.train.freeze, .unfreeze = loaded.deck.train.unfreeze}};
}

void make_instance(LoadedModel& loaded, std::size_t arena_bytes, Workplace& place) {
  loaded.instance = std::make_unique<ModelInstance>(inference_options(loaded), *place.device,
                                                    *place.mesh, arena_bytes);
  const std::vector<StoredTensor> tensors = parameters_to_load(*loaded.instance);
  load_checkpoint(loaded.checkpoint, tensors, place.mesh->world(), "parameters/");
  require_finite(tensors, loaded.checkpoint.path, place.mesh->world());
  loaded.instance->publish();
}

void load_instance(LoadedModel& loaded, const std::vector<BatchShape>& shapes, Workplace& place) {
  load_instance(
      loaded, [&](ModelInstance& instance) { evaluate_shapes(instance, shapes); }, place);
}

void load_instance(LoadedModel& loaded, const std::function<void(ModelInstance&)>& work,
                   Workplace& place) {
  Mesh& mesh = *place.mesh;
  open_device(place, loaded.deck);
  const StepPlan plan = plan_inference(inference_options(loaded), mesh.layout(), mesh.rank(), work,
                                       place.device.get());
  make_instance(loaded, plan.arena_bytes, place);
}

void require_ability(const LoadedModel& loaded, bool able, std::string_view not_done,
                     std::string_view able_ones) {
  if (able) return;
  const ModelFamily& family = loaded.deck.family();
  const std::string_view use = family.words().use;
  throw DeckError(
      fmt::format("{} has model.type = \"{}\", which {}", loaded.checkpoint.path, family.name(),
                  not_done),
      fmt::format("use one of model.type = \"{}\"{}{}", able_ones, use.empty() ? "" : "; ", use));
}

ReplicatedModel::ReplicatedModel(const FamilyTable& families, const std::string& path,
                                 Communicator& world)
    : checkpoint_(open_checkpoint(path, world)), alone_(Mesh::planned(Layout(), 0, 1)) {
  together(world, [&] {
    const TrainMeta meta = TrainMeta::parse(checkpoint_.json, checkpoint_.path);
    deck_ = parse_deck(families, meta.deck, checkpoint_.path + " (deck)", {});
    deck_.family().vocab_size(deck_) = meta.vocab_size;
    vocabulary_ = meta.vocabulary;
  });
}

ModelInstance::Options ReplicatedModel::options() const {
  const TrainPrecision trained = deck_.train.precision;
  const bool other_masters =
      trained == TrainPrecision::fp64 || trained == TrainPrecision::bf16_true;
  return {.model = model_of(deck_),
          .precision = precision_of(name_of(other_masters ? trained : TrainPrecision::fp32)),
          .seed = static_cast<std::uint64_t>(deck_.run.seed)};
}

std::size_t ReplicatedModel::memory(std::size_t arena_bytes, const Device* target) const {
  NullInstance instance(options(), Layout(), 0, target);
  MemoryPlan plan;
  instance->add_to(plan);
  return plan.total() - plan.bytes_of("matrix products") + arena_bytes;
}

ModelInstance& ReplicatedModel::load(std::size_t arena_bytes, Device& device, Communicator& world) {
  together(world, [&] {
    instance_ = std::make_unique<ModelInstance>(options(), device, *alone_, arena_bytes);
  });
  const std::vector<StoredTensor> tensors = parameters_to_load(*instance_);
  load_checkpoint(checkpoint_, tensors, world, "parameters/");
  require_finite(tensors, checkpoint_.path, world);
  instance_->publish();
  return *instance_;
}

}  // namespace choir
