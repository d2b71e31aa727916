#include "src/run/stored_model.hpp"

#include <algorithm>

#include "src/core/json_value.hpp"
#include "src/parallel/sharding/packed_parameters.hpp"

namespace choir {
namespace {

constexpr std::int64_t kMostSymbols = std::numeric_limits<std::int32_t>::max();

/// `elements` are the local elements of a tensor shaped like `p` that are in this rank's slice.
StoredTensor stored(const std::string& name, const Parameter& p, const ParameterElements& elements,
                    ModelInstance& instance, const WritingShare& share) {
  const TensorView& mine = elements.view;
  StoredTensor result{.name = name, .dtype = mine.dtype, .shape = p.shape, .pieces = {}};
  if (!elements.outside) result.device = &instance.device();
  const Range slice = instance.storage().owned(p);
  std::vector<ShardRun> runs;
  std::int64_t n = 0, at = 0;
  for (const ShardRun& run : shard_runs(p)) {
    const Range here = overlap({run.local, run.count}, slice);
    if (here.count == 0 || !(run.owned || share.all)) continue;
    runs.push_back({run.logical + here.first - run.local, here.first - slice.first, here.count});
    n += here.count;
  }
  const std::int64_t first = n * share.part / share.parts;
  const std::int64_t last = n * (share.part + 1) / share.parts;
  for (const ShardRun& run : runs) {
    const std::int64_t begin = std::max(first, at) - at, end = std::min(last, at + run.count) - at;
    if (begin < end)
      result.pieces.push_back(
          {run.logical + begin, end - begin,
           static_cast<std::byte*>(mine.data) +
               static_cast<std::size_t>(run.local + begin) * size_of(mine.dtype)});
    at += run.count;
  }
  return result;
}

ParameterElements master_of(ModelInstance& instance, const Parameter& p) {
  const ParameterStorage& storage = instance.storage();
  const Bucket& bucket = storage.bucket_of(p);
  return {storage.owned_part(storage.masters(bucket), p), storage.masters_outside(bucket)};
}

}  // namespace

void add_stored(std::vector<StoredTensor>& list, const std::string& kind, const Parameter& p,
                DType dtype, ModelInstance& instance, const WritingShare& share,
                const std::function<ParameterElements(const Parameter&)>& elements_of) {
  StoredTensor tensor{.name = kind + "/" + p.name, .dtype = dtype, .shape = p.shape, .pieces = {}};
  const auto add = [&](const Parameter& place) {
    if (!place.resident()) return;
    StoredTensor here = stored(tensor.name, place, elements_of(place), instance, share);
    CHOIR_CHECK(here.dtype == dtype, "{} is {}, not {}", tensor.name, name_of(here.dtype),
                name_of(dtype));
    tensor.device = here.device;
    tensor.pieces.insert(tensor.pieces.end(), here.pieces.begin(), here.pieces.end());
  };
  for (const Parameter* tile = &p; tile != nullptr; tile = tile->next_tile) add(*tile);
  if (share.all)
    for (const Parameter* copy : instance.parameters().copies())
      if (copy->tied_to == &p) add(*copy);
  list.push_back(std::move(tensor));
}

/// A tensor that is read whole, as f32, and packed.
StoredTensor packed_tensor(ModelInstance& instance, const Parameter& p) {
  StoredTensor tensor{.name = "parameters/" + p.name,
                      .dtype = DType::f32,
                      .shape = p.shape,
                      .pieces = {},
                      .converts = true};
  if (PackedParameters::resident(p)) tensor.pieces.push_back({0, p.count(), nullptr});
  tensor.consume = [&instance, &p](const void* whole) {
    instance.storage().packed()->pack(p, static_cast<const float*>(whole));
  };
  return tensor;
}

void add_master(std::vector<StoredTensor>& list, ModelInstance& instance, const Parameter& p,
                const WritingShare& share) {
  if (p.packed) return list.push_back(packed_tensor(instance, p));
  const DType kept = instance.storage().precision().kept(p.trainable);
  add_stored(list, "parameters", p, kept, instance, share,
             [&](const Parameter& place) { return master_of(instance, place); });
  // A frozen weight may have been stored in a narrower type, or may become narrower now.
  list.back().converts = !(instance.options().training && p.trainable);
}

void add_statistics(
    std::vector<StoredTensor>& list, ModelInstance& instance, bool load, const std::string& prefix,
    const std::function<std::pair<TensorView, TensorView>(std::size_t)>& values_of) {
  const bool mine = load || instance.storage().sharding().data().rank() == 0;
  std::size_t index = 0;
  for (const RunningStatistics& norm : instance.parameters().running_statistics()) {
    const Parameter& weight = *norm.weight;
    const auto stored = values_of ? values_of(index) : std::pair{norm.mean, norm.variance};
    ++index;
    for (const bool mean : {true, false}) {
      StoredTensor tensor{.name = prefix + std::string(kRunningStatistics) + norm.name +
                                  (mean ? ".running_mean" : ".running_variance"),
                          .dtype = instance.storage().precision().statistic,
                          .shape = weight.shape,
                          .pieces = {},
                          .device = &instance.device()};
      const TensorView& values = mean ? stored.first : stored.second;
      if (weight.resident() && mine)
        for (const ShardRun& run : shard_runs(weight))
          if (run.owned || load)
            tensor.pieces.push_back(
                {run.logical, run.count, values.slice(run.local, run.count).data});
      list.push_back(std::move(tensor));
    }
  }
}

std::vector<StoredTensor> parameters_to_load(ModelInstance& instance) {
  std::vector<StoredTensor> list;
  for (const Parameter* p : instance.parameters().all())
    add_master(list, instance, *p, {.all = true});
  add_statistics(list, instance, true);
  return list;
}

std::vector<State> Progress::states(bool dynamic_loss_scale) {
  const auto scalar = [](void* value, DType type) { return TensorView{value, type, {1}}; };
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
  json["deck"] = parsed_ordered_json(deck);
  // A vocabulary of another program is stored as a string, to keep every byte.
  const bool own = vocabulary.find('"') == vocabulary.find("\"kind\"");
  if (!vocabulary.empty() && own) json["vocabulary"] = parsed_ordered_json(vocabulary);
  if (!own) json["vocabulary"] = vocabulary;
  json["vocab_size"] = vocab_size;
  if (!data.empty()) json["data"] = parsed_ordered_json(data);
  if (!contents.empty()) json["data_contents"] = contents;
  if (!products.empty()) json["products"] = parsed_ordered_json(products);
  json["provenance"] = parsed_ordered_json(provenance);
  return dumped(json, 1);
}

TrainMeta TrainMeta::parse(const std::string& text, const std::string& path) {
  try {
    const auto json = read_ordered_json(text, "the description in '" + path + "'");
    TrainMeta meta;
    meta.deck = dumped(json.at("deck"), 1);
    if (json.contains("vocabulary")) {
      const auto& stored = json.at("vocabulary");
      meta.vocabulary = stored.is_string() ? stored.get<std::string>() : dumped(stored);
    }
    const auto& size = json.at("vocab_size");
    if (size.is_number_integer()) meta.vocab_size = size.get<std::int64_t>();
    if (!size.is_number_integer() || meta.vocab_size < 0 || meta.vocab_size > kMostSymbols)
      throw StorageError(fmt::format("the description in '{}' has a vocabulary of {} symbols", path,
                                     dumped(size).substr(0, 40)));
    if (json.contains("data")) meta.data = dumped(json.at("data"));
    if (json.contains("data_contents")) meta.contents = json.at("data_contents").get<std::string>();
    if (json.contains("products")) meta.products = dumped(json.at("products"));
    meta.provenance = dumped(json.at("provenance"));
    return meta;
  } catch (const JsonError& error) {
    throw StorageError(error.what(), error.hint());
  } catch (const nlohmann::json::exception&) {
    throw StorageError(
        "the description in '" + path + "' is not JSON with a deck, a vocabulary and a provenance",
        "was this checkpoint written by choir train?");
  }
}

}  // namespace choir
