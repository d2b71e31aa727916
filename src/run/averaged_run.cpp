#include "src/run/averaged_run.hpp"
#include "src/core/quantities.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "choir/core/error.hpp"
#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/core/build_info.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "src/run/imported_run.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/encoding.hpp"
#include "src/store/open.hpp"
#include "src/store/slab_io.hpp"
#include "src/store/store.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

bool is_weight(const std::string& name) {
  return name.starts_with("parameters/") || name.starts_with(kRunningStatistics);
}

/// The folder with the checkpoints of a run.
std::string folder_of(const std::string& run) {
  std::error_code ignored;
  const fs::path inner = fs::path(run) / "checkpoints";
  return fs::is_directory(inner, ignored) ? inner.string() : run;
}

std::string listed(std::vector<std::int64_t> steps) {
  constexpr std::size_t kMost = 20;
  std::sort(steps.begin(), steps.end());
  const std::size_t left_out = steps.size() > kMost ? steps.size() - kMost : 0;
  std::vector<std::string> words;
  for (std::size_t i = left_out; i < steps.size(); ++i) words.push_back(std::to_string(steps[i]));
  const std::string text = words.empty() ? "none" : join(words, ", ");
  return left_out == 0 ? text : fmt::format("{} earlier ones, {}", left_out, text);
}

/// The steps of the folder on its current branch, newest first, the same on every rank. Collective.
std::vector<std::int64_t> steps_of(Communicator& world, const std::string& folder,
                                   std::vector<std::string>& skipped) {
  std::string text;
  together(world, [&] {
    if (world.rank() != 0) return;
    for (const BranchSurvey::Step& step : survey_branches(CheckpointDirectory(folder)).steps)
      text += fmt::format("{} {}\n", step.step, step.abandoned);
  });
  broadcast_text(world, text);
  std::vector<std::int64_t> steps;
  for (const std::string& line : split(text, '\n')) {
    if (line.empty()) continue;
    const std::size_t space = line.find(' ');
    if (space + 1 == line.size())
      steps.push_back(std::stoll(line));
    else
      skipped.push_back(fmt::format("step {}: {}", line.substr(0, space), line.substr(space + 1)));
  }
  return steps;
}

/// The checkpoints to average, in the order of their steps. Collective.
std::vector<Checkpoint> chosen(Communicator& world, const AverageRequest& request,
                               std::vector<std::string>& skipped) {
  const std::string folder = folder_of(request.run);
  const CheckpointDirectory directory(folder);
  const std::vector<std::int64_t> all = steps_of(world, folder, skipped);
  std::vector<Checkpoint> found;
  if (!request.steps.empty()) {
    together(world, [&] {
      for (const std::int64_t step : request.steps)
        if (std::find(all.begin(), all.end(), step) == all.end())
          throw DeckError(fmt::format("{} has no checkpoint of step {}", folder, step),
                          fmt::format("its steps are: {}", listed(all)));
    });
    for (const std::int64_t step : request.steps)
      found.push_back(open_checkpoint(directory.final_path(step), world));
  } else {
    for (const std::int64_t step : all) {
      if (std::ssize(found) == request.last) break;
      try {
        found.push_back(open_checkpoint(directory.final_path(step), world));
      } catch (const StorageError& error) {  // on every rank
        skipped.push_back(fmt::format("step {}: {}", step, error.what()));
      }
    }
    std::vector<std::int64_t> usable;
    for (const Checkpoint& one : found) usable.push_back(one.manifest.step);
    together(world, [&] {
      if (std::ssize(found) < request.last)
        throw DeckError(
            fmt::format("{} has {} that can be averaged, not {}: steps {}", folder,
                        counted(found.size(), "checkpoint"), request.last, listed(usable)),
            "average fewer with --last, or let the run keep more (checkpoint.keep, "
            "checkpoint.keep_every)");
    });
  }
  std::sort(found.begin(), found.end(), [](const Checkpoint& a, const Checkpoint& b) {
    return a.manifest.step < b.manifest.step;
  });
  return found;
}

/// Throws DeckError unless all checkpoints have the same weights. Local.
void require_same_model(const std::vector<Checkpoint>& checkpoints) {
  const auto differ = [](const Checkpoint& a, const Checkpoint& b, const std::string& how) {
    throw DeckError(
        fmt::format("{} and {} are not checkpoints of one model: {}", a.path, b.path, how),
        "average only checkpoints with the same model and vocabulary");
  };
  const Checkpoint& first = checkpoints.front();
  const std::string vocabulary = TrainMeta::parse(first.json, first.path).vocabulary;
  const auto weights = [](const Manifest& manifest) {
    return std::ranges::count_if(manifest.tensors,
                                 [](const TensorRecord& record) { return is_weight(record.name); });
  };
  for (const Checkpoint& other : checkpoints) {
    for (const TensorRecord& record : first.manifest.tensors) {
      if (!is_weight(record.name)) continue;
      const TensorRecord* const same = other.manifest.find(record.name);
      if (same == nullptr) differ(first, other, record.name + " is only in the first");
      if (same->shape != record.shape || same->dtype != record.dtype)
        differ(first, other,
               fmt::format("{} is {} {} in the first, {} {} in the second", record.name,
                           name_of(record.dtype), to_string(record.shape), name_of(same->dtype),
                           to_string(same->shape)));
    }
    if (weights(first.manifest) != weights(other.manifest))
      differ(first, other, "the second has more parameters");
    if (TrainMeta::parse(other.json, other.path).vocabulary != vocabulary)
      differ(first, other, "their vocabularies differ");
  }
}

/// Produces the mean of one tensor of several open files, chunk by chunk.
class MeanOfFiles {
 public:
  MeanOfFiles(const std::vector<Checkpoint>& checkpoints) : checkpoints_(&checkpoints) {
    for (const Checkpoint& one : checkpoints)
      files_.push_back(std::make_unique<File>(one.path + "/" + kStateName, File::Mode::read));
  }

  /// Elements [first, first + count) of the mean, in the type of the tensor.
  void produce(const std::string& name, std::int64_t first, std::int64_t count, void* to) {
    const auto n = static_cast<std::size_t>(count);
    mean_.assign(n, 0.0);
    weight_.resize(n);
    DType type = DType::f32;
    for (std::size_t k = 0; k < files_.size(); ++k) {
      const TensorRecord& record = *(*checkpoints_)[k].manifest.find(name);
      type = record.dtype;
      stored_.resize(n * size_of(type));
      files_[k]->read_at(stored_.data(), static_cast<std::int64_t>(stored_.size()),
                         record.offset + first * static_cast<std::int64_t>(size_of(type)));
      convert(stored_.data(), encoding_of(type), reinterpret_cast<std::byte*>(weight_.data()),
              Encoding::f64, count);
      for (std::size_t i = 0; i < n; ++i) {
        if (!std::isfinite(weight_[i])) not_finite(k, name, first + static_cast<std::int64_t>(i));
        mean_[i] += (weight_[i] - mean_[i]) / static_cast<double>(k + 1);
      }
    }
    convert(reinterpret_cast<const std::byte*>(mean_.data()), Encoding::f64,
            static_cast<std::byte*>(to), encoding_of(type), count);
  }

  /// Names the first weight that was not finite; "" if there was none.
  const std::string& complaint() const { return complaint_; }

 private:
  [[noreturn]] void not_finite(std::size_t k, const std::string& name, std::int64_t element) {
    complaint_ =
        fmt::format("{}: element {} of {} is not finite", (*checkpoints_)[k].path, element, name);
    throw NumericError(complaint_);
  }

  const std::vector<Checkpoint>* checkpoints_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<std::byte> stored_;
  std::vector<double> weight_, mean_;
  std::string complaint_;
};

/// The tensors of the new checkpoint: each rank has its part of every one.
std::vector<StoredTensor> tensors_of(const Communicator& world, const Manifest& manifest,
                                     MeanOfFiles& mean, Progress& progress, bool dynamic_scale,
                                     AverageReport& report) {
  std::vector<StoredTensor> list;
  for (const TensorRecord& record : manifest.tensors) {
    const bool weight = is_weight(record.name);
    if (!weight && !record.name.starts_with("optimizer/")) continue;
    const std::int64_t n = record.shape.count();
    const std::int64_t first = n * world.rank() / world.size();
    const std::int64_t last = n * (world.rank() + 1) / world.size();
    StoredTensor tensor{
        .name = record.name, .dtype = record.dtype, .shape = record.shape, .pieces = {}};
    if (last > first) tensor.pieces.push_back({first, last - first, nullptr});
    if (weight) {
      ++report.tensors;
      report.elements += n;
      tensor.produce = [&mean, name = record.name](std::int64_t at, std::int64_t count, void* to) {
        mean.produce(name, at, count, to);
      };
    } else {
      tensor.produce = [width = size_of(record.dtype)](std::int64_t, std::int64_t count, void* to) {
        std::memset(to, 0, static_cast<std::size_t>(count) * width);
      };
    }
    list.push_back(std::move(tensor));
  }
  for (const State& state : progress.states(dynamic_scale)) {
    StoredTensor tensor{.name = "state/" + state.name,
                        .dtype = state.value.dtype,
                        .shape = state.value.shape,
                        .pieces = {}};
    if (world.rank() == 0) tensor.pieces.push_back({0, state.value.count(), state.value.data});
    list.push_back(std::move(tensor));
  }
  return list;
}

/// The provenance of this program, and what was averaged.
std::string provenance_of(const std::vector<Checkpoint>& checkpoints) {
  auto json = parsed_ordered_json(build_provenance(MpiSession::library_version()));
  auto& average = json["average_of"];
  for (const Checkpoint& one : checkpoints)
    average.push_back({{"checkpoint", fs::absolute(one.path).lexically_normal().string()},
                       {"step", one.manifest.step},
                       {"saved_at", one.manifest.saved_at},
                       {"crc32c", fmt::format("{:08x}", one.manifest.state_crc32c)}});
  return dumped(json, 1);
}

/// The deck of the new run: that of the newest checkpoint, in its own directory, without the paths
/// where the run that was averaged began.
Deck deck_of(const FamilyTable& families, const Checkpoint& newest, const TrainMeta& meta,
             const std::string& out) {
  Deck deck = parse_deck(families, meta.deck, newest.path + " (deck)",
                         {"run.dir=" + out, "checkpoint.resume=auto", "eval.ema=false"});
  deck.family().vocab_size(deck) = meta.vocab_size;
  if (deck::has_adapters(deck))
    throw DeckError(
        fmt::format("{} has adapters: the mean of their factors is not the mean of the weights",
                    newest.path),
        "average models without adapters: `choir export --merge` writes one of each checkpoint");
  return deck;
}

/// Removes the folders of a run that could not be written, if they are empty, so that the same
/// command can be given again.
void remove_empty(const std::string& out) {
  std::error_code ignored;
  fs::remove(fs::path(out) / "checkpoints", ignored);
  fs::remove(out, ignored);
}

void copy_tokenizer(const std::string& run, const std::string& out) {
  const fs::path from = fs::path(run) / kTokenizerFolder;
  std::error_code failure;
  if (!fs::is_directory(from, failure)) return;
  fs::copy(from, fs::path(out) / kTokenizerFolder, fs::copy_options::recursive, failure);
  if (failure)
    throw StorageError(fmt::format("cannot copy {}: {}", from.string(), failure.message()),
                       "free space, or choose another folder with --out");
}

}  // namespace

AverageReport average_checkpoints(Communicator& world, const AverageRequest& request) {
  AverageReport report;
  together(world, [&] {
    if (world.rank() == 0) require_free_folder(request.out);
  });
  const std::vector<Checkpoint> checkpoints = chosen(world, request, report.skipped);
  for (const Checkpoint& one : checkpoints) report.steps.push_back(one.manifest.step);
  const Checkpoint& newest = checkpoints.back();
  Deck deck;
  TrainMeta meta;
  std::optional<MeanOfFiles> mean;
  together(world, [&] {
    require_same_model(checkpoints);
    meta = TrainMeta::parse(newest.json, newest.path);
    deck = deck_of(*request.families, newest, meta, request.out);
    mean.emplace(checkpoints);
    if (world.rank() == 0) make_run_folder(request.out);
  });
  const TrainMeta made{.deck = resolved_json(deck),
                       .vocabulary = meta.vocabulary,
                       .vocab_size = meta.vocab_size,
                       .data = "",
                       .contents = "",
                       .provenance = provenance_of(checkpoints)};
  Progress progress;
  const ops::LossScaling scaling = loss_scaling_of(deck);
  progress.loss_scale = scaling.start;
  CheckpointStore store((fs::path(request.out) / "checkpoints").string(), world);
  const SaveResult saved =
      store.save({.step = 0,
                  .json = made.to_json(),
                  .deck_hash = deck_digest(deck),
                  .layout = "average of " + counted(checkpoints.size(), "checkpoint")},
                 tensors_of(world, newest.manifest, *mean, progress, scaling.dynamic(), report));
  together(world, [&] {
    if (!saved.saved && world.rank() == 0) remove_empty(request.out);
    if (!mean->complaint().empty())
      throw NumericError(mean->complaint(),
                         "leave that checkpoint out: name the others by --steps");
  });
  together(world, [&] {
    if (!saved.saved)
      throw StorageError(saved.reason, "free space, or choose another folder with --out");
    if (world.rank() != 0) return;
    copy_tokenizer(request.run, request.out);
    write_text_file((fs::path(request.out) / "deck.json").string(), resolved_json(deck));
  });
  report.checkpoint = saved.path;
  report.bytes = saved.bytes;
  return report;
}

}  // namespace choir
