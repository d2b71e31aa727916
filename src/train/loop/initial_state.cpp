#include "src/train/loop/initial_state.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "choir/models/family.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/nn/parameter_set.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/deck/name_patterns.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/finite.hpp"
#include "src/store/open.hpp"

namespace choir {
namespace {

/// The name in the model of a checkpoint's tensor; "" if the tensor does not belong to a model.
std::string name_in_model(const std::string& stored) {
  for (const std::string_view kind : {std::string_view("parameters/"), kRunningStatistics})
    if (stored.starts_with(kind)) return stored.substr(kind.size());
  return {};
}

/// Indented lines of a message; a long list is cut.
std::string line_list(const std::vector<std::string>& lines) {
  constexpr std::size_t kMost = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), kMost); ++i) text += "\n    " + lines[i];
  if (lines.size() > kMost) text += fmt::format("\n    and {} more", lines.size() - kMost);
  return text;
}

/// "a, b, c and 4 more"
std::string shortened(const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 3;
  const std::vector<std::string> first(
      names.begin(), names.begin() + std::min(std::ssize(names), std::ptrdiff_t{kNamed}));
  const std::string rest =
      names.size() > kNamed ? fmt::format(" and {} more", names.size() - kNamed) : "";
  return join(first, ", ") + rest;
}

/// The reason why this tensor is not taken; "" if it is taken. `misfit` becomes true if the
/// checkpoint has a tensor of this name which the user did not leave out, and which does not fit.
std::string obstacle(const StoredTensor& tensor, const Checkpoint& checkpoint,
                     const CheckpointSection& wish, bool& misfit) {
  misfit = false;
  const std::string name = name_in_model(tensor.name);
  if (!wish.init_take.empty() && !matches_any(wish.init_take, name))
    return "not in checkpoint.init_take";
  if (matches_any(wish.init_skip, name)) return "in checkpoint.init_skip";
  const TensorRecord* record = checkpoint.manifest.find(tensor.name);
  if (record == nullptr) return "not in the checkpoint";
  misfit = !is_loadable(*record, tensor);
  if (!misfit) return {};
  return fmt::format("stored as {} {}, wanted as {} {}", name_of(record->dtype),
                     to_string(record->shape), name_of(tensor.dtype), to_string(tensor.shape));
}

/// A tensor that silently began anew would leave a model that looks trained and is not.
[[noreturn]] void refuse_misfits(const std::string& path, const std::vector<std::string>& lines,
                                 std::vector<std::string> names) {
  constexpr std::size_t kNamed = 4;
  const std::size_t count = names.size();
  names.resize(std::min(count, kNamed));
  throw DeckError(
      fmt::format("checkpoint.init_from: {} of this model {} another shape or type in {}:{}",
                  counted(std::ssize(lines), "parameter"), count == 1 ? "has" : "have", path,
                  line_list(lines)),
      fmt::format("give the model the sizes of that run (the vocabulary is that of the data), or "
                  "let them begin anew: checkpoint.init_skip='[{}{}]'",
                  join(names, ","), count > kNamed ? ", ..." : ""));
}

/// Adapters need their base model: throws DeckError if a requested parameter of the rest of the
/// model is missing.
void require_base(const ModelInstance& instance, const WarmStart& result,
                  const std::vector<std::string>& lacking) {
  if (lacking.empty() || !has_adapters(instance.parameters())) return;
  throw DeckError(
      fmt::format("checkpoint.init_from: {} does not have what model.lora adapts:{}", result.path,
                  line_list(lacking)),
      "name a run of the same model; list parameters that begin anew in checkpoint.init_skip");
}

/// Refuses a run from which less than half of the model can be taken, unless patterns say what to
/// take: its model usually has another size, and training would begin from random weights.
void require_most(const CheckpointSection& wish, const WarmStart& result,
                  const std::vector<std::string>& lacking) {
  if (!wish.init_take.empty() || !wish.init_skip.empty()) return;
  const std::size_t all = result.taken.size() + lacking.size();
  if (2 * lacking.size() <= all) return;
  throw DeckError(
      fmt::format("checkpoint.init_from: only {} of the model's {} can be taken from {}; {}",
                  result.taken.size(), counted(static_cast<std::int64_t>(all), "tensor"),
                  result.path, lacking.front()),
      "give the model the sizes of that run (its deck.json has them); to take so little all the "
      "same, say what to take: 'checkpoint.init_take=[\"*\"]'");
}

}  // namespace

std::string WarmStart::headline() const {
  constexpr std::size_t kNamed = 3;
  std::string text =
      fmt::format("warm start from {}: {} taken", path, counted(std::ssize(taken), "tensor"));
  if (fresh.empty()) return text;
  const std::vector<std::string> first(
      fresh.begin(), fresh.begin() + std::min(std::ssize(fresh), std::ptrdiff_t{kNamed}));
  return text + fmt::format(", {} not, which begin anew ({}): {}{}", fresh.size(),
                            counted(fresh_elements, "parameter"), join(first, "; "),
                            fresh.size() > kNamed
                                ? fmt::format("; and {} more", fresh.size() - kNamed)
                                : "");
}

std::string WarmStart::to_string() const {
  std::string text =
      fmt::format("warm start from {}: {} taken", path, counted(taken.size(), "tensor"));
  if (!fresh.empty())
    text += fmt::format("\n  {} begin anew ({}):{}", fresh.size(),
                        counted(fresh_elements, "parameter"), line_list(fresh));
  if (!unused.empty())
    text +=
        fmt::format("\n  {} of the checkpoint are not used:{}", unused.size(), line_list(unused));
  return text;
}

namespace {

struct PlannedWarmStart {
  WarmStart result;
  std::vector<StoredTensor> wanted;
};

/// Selects what is taken from the checkpoint. Local, the same on every rank.
PlannedWarmStart plan_warm_start(ModelInstance& instance, const Deck& deck,
                                 const std::string& vocabulary, const Checkpoint& checkpoint) {
  const CheckpointSection& wish = deck.checkpoint;
  const std::vector<StoredTensor> all = parameters_to_load(instance);
  PlannedWarmStart plan{.result = {.path = checkpoint.path,
                                   .taken = {},
                                   .fresh = {},
                                   .fresh_elements = 0,
                                   .unused = {},
                                   .vocabulary = {},
                                   .bases = {}},
                        .wanted = {}};
  WarmStart& result = plan.result;
  const TrainMeta meta = TrainMeta::parse(checkpoint.json, checkpoint.path);
  result.vocabulary = meta.vocabulary;
  std::vector<std::string> names, lacking, misfits, misfit_names;
  for (const StoredTensor& tensor : all) names.push_back(name_in_model(tensor.name));
  require_matches("checkpoint.init_take", wish.init_take, names);
  require_matches("checkpoint.init_skip", wish.init_skip, names);
  for (const StoredTensor& tensor : all) {
    const std::string name = name_in_model(tensor.name);
    bool misfit = false;
    const std::string why = obstacle(tensor, checkpoint, wish, misfit);
    if (misfit) {
      misfits.push_back(name + ": " + why);
      misfit_names.push_back('"' + name + '"');
    }
    if (why.empty()) {
      plan.wanted.push_back(tensor);
      result.taken.push_back(name);
      refer_to(result.bases, checkpoint, tensor.name, tensor.name);
    } else {
      result.fresh.push_back(name + ": " + why);
      result.fresh_elements += tensor.shape.count();
      if (!is_adapter(name) && !why.ends_with("in checkpoint.init_skip") &&
          !why.ends_with("in checkpoint.init_take"))
        lacking.push_back(result.fresh.back());
    }
  }
  for (const TensorRecord& record : checkpoint.manifest.all_tensors()) {
    const std::string name = name_in_model(record.name);
    if (!name.empty() &&
        std::find(result.taken.begin(), result.taken.end(), name) == result.taken.end())
      result.unused.push_back(name);
  }
  require_base(instance, result, lacking);
  if (!misfits.empty()) refuse_misfits(checkpoint.path, misfits, std::move(misfit_names));
  if (plan.wanted.empty())
    throw DeckError(fmt::format("checkpoint.init_from: nothing of {} fits this model:{}",
                                checkpoint.path, line_list(result.fresh)),
                    "`choir inspect` lists what the checkpoint holds");
  require_most(wish, result, lacking);
  deck.family().check_start(deck,
                            {{.pattern = "*",
                              .prefix = "",
                              .checkpoint = checkpoint.path,
                              .deck = meta.deck,
                              .vocabulary = meta.vocabulary}},
                            vocabulary);
  return plan;
}

}  // namespace

WarmStart warm_start(ModelInstance& instance, const Deck& deck, const std::string& vocabulary) {
  Communicator& world = instance.mesh().world();
  const Checkpoint checkpoint = open_checkpoint(deck.checkpoint.init_run(), world);
  PlannedWarmStart plan;
  together(world, [&] { plan = plan_warm_start(instance, deck, vocabulary, checkpoint); });
  // Unwanted tensors of the checkpoint are ignored.
  load_checkpoint(checkpoint, plan.wanted, world, "nothing else");
  require_finite(plan.wanted, checkpoint.path, world);
  instance.publish();
  return std::move(plan.result);
}

namespace {

constexpr const char* kInitFrom = "checkpoint.init_from";

std::string first_component(const std::string& name) {
  return name.substr(0, name.find('.'));
}

/// Numbers of characters that can be removed from names that match this pattern: none, or leading
/// components of the part before its first wildcard.
std::vector<std::size_t> cuts_of(const std::string& pattern) {
  std::vector<std::size_t> cuts{0};
  const std::size_t literal = std::min(pattern.find_first_of("*?"), pattern.size());
  for (std::size_t i = 0; i < literal; ++i)
    if (pattern[i] == '.') cuts.push_back(i + 1);
  return cuts;
}

/// The name in a checkpoint of a model's tensor, without the first `cut` characters of its name
/// (the kind stays).
std::string stored_name(const std::string& stored, std::size_t cut) {
  const std::size_t kind = stored.size() - name_in_model(stored).size();
  return stored.substr(0, kind) + stored.substr(kind + cut);
}

/// Maps the tensors of one source.
class PartPlanner {
 public:
  PartPlanner(const InitSource& source, std::vector<const StoredTensor*> matched)
      : source_(source), matched_(std::move(matched)) {
    for (const TensorRecord& record : source.tensors) records_[record.name] = &record;
  }

  InitPlan::Part plan() const {
    const std::size_t cut = best_cut();
    InitPlan::Part part{.prefix = source_.pattern.substr(0, cut), .tensors = {}, .elements = 0};
    std::vector<std::string> faults, names;
    for (const StoredTensor* tensor : matched_) {
      const std::string name = name_in_model(tensor->name);
      const TensorRecord* record = find(*tensor, cut);
      if (record == nullptr && is_adapter(name)) continue;
      const std::string fault = fault_of(*tensor, record, cut);
      if (!fault.empty()) {
        faults.push_back(name + ": " + fault);
        names.push_back('"' + name + '"');
        continue;
      }
      part.tensors.push_back(*tensor);
      part.tensors.back().name = record->name;
      part.elements += tensor->shape.count();
    }
    if (!faults.empty()) refuse(faults, names);
    if (part.tensors.empty())
      throw DeckError(fmt::format("{}: nothing is left for '{}' to take from {}", kInitFrom,
                                  source_.pattern, source_.path),
                      "leave the pattern out, or take patterns out of checkpoint.init_skip");
    return part;
  }

 private:
  const TensorRecord* find(const StoredTensor& tensor, std::size_t cut) const {
    const auto found = records_.find(stored_name(tensor.name, cut));
    return found == records_.end() ? nullptr : found->second;
  }
  /// The cut under which most tensors are found, the shortest if there are several.
  std::size_t best_cut() const {
    std::size_t best = 0;
    std::ptrdiff_t most = 0;
    for (const std::size_t cut : cuts_of(source_.pattern)) {
      const auto found =
          std::count_if(matched_.begin(), matched_.end(),
                        [&](const StoredTensor* tensor) { return find(*tensor, cut) != nullptr; });
      if (found > most) most = found, best = cut;
    }
    return best;
  }
  std::string fault_of(const StoredTensor& tensor, const TensorRecord* record,
                       std::size_t cut) const {
    if (record == nullptr) {
      std::vector<std::string> tried;
      for (const std::size_t any : cuts_of(source_.pattern))
        if (cut == 0 || any == cut) tried.push_back(name_in_model(stored_name(tensor.name, any)));
      return "not there, as " + join(tried, " or ");
    }
    if (record->shape == tensor.shape && record->dtype == tensor.dtype) return {};
    return fmt::format("{} {} there, {} {} here", name_of(record->dtype), to_string(record->shape),
                       name_of(tensor.dtype), to_string(tensor.shape));
  }
  [[noreturn]] void refuse(const std::vector<std::string>& faults,
                           std::vector<std::string> names) const {
    constexpr std::size_t kNamed = 4;
    const std::size_t count = names.size();
    names.resize(std::min(count, kNamed));
    throw DeckError(fmt::format("{}: {} of the {} that '{}' matches cannot be taken from {}:{}",
                                kInitFrom, count, counted(std::ssize(matched_), "parameter"),
                                source_.pattern, source_.path, line_list(faults)),
                    fmt::format("name a run with the same sizes and train.precision, change the "
                                "pattern, or let some begin anew: checkpoint.init_skip=[{}{}]",
                                join(names, ","), count > kNamed ? ", ..." : ""));
  }

  const InitSource& source_;
  std::vector<const StoredTensor*> matched_;
  std::map<std::string, const TensorRecord*> records_;
};

/// The tensors that each source provides.
std::vector<std::vector<const StoredTensor*>> matches_of(const std::vector<StoredTensor>& model,
                                                         const std::vector<InitSource>& sources,
                                                         const std::vector<std::string>& skip) {
  std::vector<std::vector<const StoredTensor*>> matches(sources.size());
  std::vector<std::string> names;
  for (const StoredTensor& tensor : model) names.push_back(name_in_model(tensor.name));
  for (const InitSource& source : sources) require_matches(kInitFrom, {source.pattern}, names);
  require_matches("checkpoint.init_skip", skip, names);
  for (std::size_t i = 0; i < model.size(); ++i) {
    const InitSource* first = nullptr;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      if (!matches_pattern(sources[s].pattern, names[i])) continue;
      if (first != nullptr)
        throw DeckError(fmt::format("{}: '{}' and '{}' both match {}", kInitFrom, first->pattern,
                                    sources[s].pattern, names[i]),
                        "let one pattern match each parameter");
      first = &sources[s];
      if (!matches_any(skip, names[i])) matches[s].push_back(&model[i]);
    }
  }
  return matches;
}

std::string tensors_and_parameters(std::int64_t tensors, std::int64_t elements) {
  return fmt::format("{}, {}", counted(tensors, "tensor"), counted(elements, "parameter"));
}

}  // namespace

InitPlan plan_init(const std::vector<StoredTensor>& model, const std::vector<InitSource>& sources,
                   const std::vector<std::string>& skip) {
  const auto matches = matches_of(model, sources, skip);
  InitPlan plan;
  std::set<std::string> taken;                           // of the model
  std::map<std::string, std::set<std::string>> used_of;  // of each checkpoint
  for (std::size_t s = 0; s < sources.size(); ++s) {
    plan.parts.push_back(PartPlanner(sources[s], matches[s]).plan());
    const std::string& prefix = plan.parts.back().prefix;
    for (const StoredTensor& tensor : plan.parts.back().tensors) {
      taken.insert(prefix + name_in_model(tensor.name));
      used_of[sources[s].path].insert(tensor.name);
    }
  }
  for (const StoredTensor& tensor : model) {
    const std::string name = name_in_model(tensor.name);
    InitPlan::Group& group = plan.groups[first_component(name)];
    ++group.tensors;
    if (taken.contains(name)) continue;
    ++group.fresh;
    group.fresh_elements += tensor.shape.count();
  }
  for (const InitSource& source : sources) {
    std::vector<std::string>& unused = plan.unused[source.path];
    if (!unused.empty()) continue;
    for (const TensorRecord& record : source.tensors)
      if (const std::string name = name_in_model(record.name);
          !name.empty() && !used_of[source.path].contains(record.name))
        unused.push_back(name);
  }
  return plan;
}

std::string InitPlan::report(const std::vector<InitSource>& sources) const {
  std::string text = fmt::format("warm start from {}", counted(std::ssize(unused), "run"));
  const auto add = [&](const std::string& line) {
    constexpr std::size_t kColumns = 100;
    text += "\n" + wrap(line, kColumns, 2);
    text.pop_back();
  };
  for (std::size_t s = 0; s < sources.size(); ++s)
    add(fmt::format(
        "{}: {} of {}{}", sources[s].pattern,
        tensors_and_parameters(std::ssize(parts[s].tensors), parts[s].elements), sources[s].path,
        parts[s].prefix.empty() ? "" : fmt::format(", there without '{}'", parts[s].prefix)));
  std::vector<std::string> fresh;
  std::int64_t tensors = 0, elements = 0;
  for (const auto& [name, group] : groups) {
    if (group.fresh == 0) continue;
    tensors += group.fresh, elements += group.fresh_elements;
    fresh.push_back(group.fresh == group.tensors
                        ? name
                        : fmt::format("{} ({} of {})", name, group.fresh, group.tensors));
  }
  if (!fresh.empty())
    add(fmt::format("begin anew: {}: {}", tensors_and_parameters(tensors, elements),
                    shortened(fresh)));
  for (const auto& [path, names] : unused)
    if (!names.empty())
      add(fmt::format("not used: {} of {}: {}", counted(std::ssize(names), "tensor"), path,
                      shortened(names)));
  return text;
}

namespace {

/// The checkpoints of the map, and what is taken from each.
struct PlannedParts {
  std::map<std::string, Checkpoint> opened;         ///< by the path in the deck
  std::map<std::string, std::string> vocabularies;  ///< by the path in the deck
  std::vector<InitSource> sources;
  InitPlan plan;
};

/// Collective over `world`.
PlannedParts plan_parts(ModelInstance& instance, const Deck& deck, const std::string& vocabulary,
                        Communicator& world, Verify verify) {
  PlannedParts parts;
  for (const auto& [pattern, path] : deck.checkpoint.init_map()) {
    if (!parts.opened.contains(path))
      parts.opened.emplace(path, open_checkpoint(path, world, verify));
    const Checkpoint& checkpoint = parts.opened.at(path);
    parts.sources.push_back({pattern, checkpoint.path, checkpoint.manifest.all_tensors()});
  }
  together(world, [&] {
    parts.plan = plan_init(parameters_to_load(instance), parts.sources, deck.checkpoint.init_skip);
    std::vector<StartingPoint> points;
    for (const auto& [pattern, path] : deck.checkpoint.init_map()) {
      const Checkpoint& checkpoint = parts.opened.at(path);
      const TrainMeta meta = TrainMeta::parse(checkpoint.json, checkpoint.path);
      parts.vocabularies[path] = meta.vocabulary;
      points.push_back({.pattern = pattern,
                        .prefix = parts.plan.parts[points.size()].prefix,
                        .checkpoint = checkpoint.path,
                        .deck = meta.deck,
                        .vocabulary = meta.vocabulary});
    }
    deck.family().check_start(deck, points, vocabulary);
  });
  return parts;
}

}  // namespace

PartsStart begin_with_parts(ModelInstance& instance, const Deck& deck,
                            const std::string& vocabulary) {
  Communicator& world = instance.mesh().world();
  const PlannedParts parts = plan_parts(instance, deck, vocabulary, world, Verify::checksums);
  PartsStart start{.report = {}, .vocabularies = parts.vocabularies, .bases = {}};
  std::size_t part = 0;
  for (const auto& [pattern, path] : deck.checkpoint.init_map()) {
    const auto& [prefix, tensors, elements] = parts.plan.parts[part++];
    for (const StoredTensor& tensor : tensors) {
      const std::string own = name_in_model(tensor.name);
      const std::string kind = tensor.name.substr(0, tensor.name.size() - own.size());
      refer_to(start.bases, parts.opened.at(path), tensor.name, kind + prefix + own);
    }
    load_checkpoint(parts.opened.at(path), tensors, world, "nothing else");
    require_finite(tensors, parts.opened.at(path).path, world);
  }
  instance.publish();
  start.report = parts.plan.report(parts.sources);
  return start;
}

std::string warn_of_random_base(const ModelInstance& instance, const Deck& deck) {
  const CheckpointSection& wish = deck.checkpoint;
  if (!wish.init_map().empty() || !wish.init_run().empty() || !has_adapters(instance.parameters()))
    return {};
  return "the model has random weights beside its adapters (model.lora), and they stay frozen: "
         "name the run to adapt in checkpoint.init_from";
}

std::vector<std::string> check_initial_state(ModelInstance& instance, const Deck& deck,
                                             const std::string& vocabulary, Communicator& world) {
  const CheckpointSection& wish = deck.checkpoint;
  std::vector<std::string> lines;
  if (const std::string warning = warn_of_random_base(instance, deck); !warning.empty())
    lines.push_back(warning);
  if (!wish.init_map().empty()) {
    const PlannedParts parts = plan_parts(instance, deck, vocabulary, world, Verify::sizes);
    for (const InitSource& source : parts.sources)
      lines.push_back(fmt::format("{} of the model begins with the weights of {}", source.pattern,
                                  source.path));
  } else if (!wish.init_run().empty()) {
    const Checkpoint checkpoint = open_checkpoint(wish.init_run(), world, Verify::sizes);
    const WarmStart start = plan_warm_start(instance, deck, vocabulary, checkpoint).result;
    lines.push_back(fmt::format("the run begins with the weights of {}", start.path));
    lines.push_back(start.headline());
  }
  return lines;
}

}  // namespace choir
