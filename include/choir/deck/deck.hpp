#pragma once
// The deck: all settings of a run as a typed struct, and the batch and the layout that it
// describes. The initialisers below are the defaults. The meaning, the unit and the limits of each
// key are in src/deck/deck_keys.cpp; keys of a single family of models are in the folder of that
// family. `choir train --describe` prints them all. All functions here are local, and pure except
// for reading files.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/core/enum_words.hpp"
#include "choir/core/key_table.hpp"
#include "choir/core/run_choices.hpp"
#include "choir/deck/family_table.hpp"
#include "choir/models/family.hpp"
#include "choir/nn/pass.hpp"
#include "choir/parallel/pipeline/schedule.hpp"

namespace choir {

struct RunSection {
  std::string dir;   ///< derived: runs/<name>
  std::string name;  ///< derived: the deck's file name without its extension
  std::int64_t seed = 1337;
  double walltime = 0;          ///< seconds; 0: no limit
  double walltime_margin = 60;  ///< seconds kept for the last save
};

struct ModelSection {
  std::string type = "gpt";  ///< a name in the table of families
};

enum class DataFormat : std::uint8_t { automatic, text, native, nanogpt, megatron, synthetic };
constexpr auto words_of(DataFormat) {
  using enum DataFormat;
  return words<DataFormat>({{automatic, "auto"},
                            {text, "text"},
                            {native, "native"},
                            {nanogpt, "nanogpt"},
                            {megatron, "megatron"},
                            {synthetic, "synthetic"}});
}

struct DataSection {
  std::vector<std::string> train, val;
  DataFormat format = DataFormat::automatic;
  ReaderKind reader = ReaderKind::own;
  TextMap hints;
  Preload preload = Preload::none;
  int readers_every = 0;  ///< 0: one per node
  int prefetch = 2;
};

/// The reaction to a loss or gradient that is not finite.
enum class NanPolicy : std::uint8_t { stop, skip };
constexpr auto words_of(NanPolicy) {
  return words<NanPolicy>({{NanPolicy::stop, "stop"}, {NanPolicy::skip, "skip"}});
}

/// The precision of parameters that are not trained.
enum class FrozenPrecision : std::uint8_t { master, bf16, nf4, int8 };
constexpr auto words_of(FrozenPrecision) {
  return words<FrozenPrecision>({{FrozenPrecision::master, "master"},
                                 {FrozenPrecision::bf16, "bf16"},
                                 {FrozenPrecision::nf4, "nf4"},
                                 {FrozenPrecision::int8, "int8"}});
}

constexpr auto words_of(Recompute) {
  using enum Recompute;
  return words<Recompute>({{none, "none"}, {selective, "selective"}, {full, "full"}});
}

struct TrainSection {
  TrainPrecision precision = TrainPrecision::fp32;
  std::int64_t loss_scale = 0;  ///< 0 means "dynamic"
  std::int64_t loss_scale_window = 2000;
  bool cuda_graph = true;
  bool programmatic_dependent_launch = false;
  bool time_products = true;
  int steps_in_flight = 0;  ///< 0 means "auto"
  int micro_batch_size = 0;
  int global_batch_size = 0;
  int grad_accum = 0;
  int micro_batches = 0;  ///< per step on all ranks, for families without a fixed shape
  std::int64_t max_steps = 1000;
  bool reproducible = false;
  Recompute recompute = Recompute::none;
  std::string profile;  ///< "" or "k:l"
  std::vector<std::string> freeze, unfreeze;
  FrozenPrecision frozen_precision = FrozenPrecision::master;
  NanPolicy nan_policy = NanPolicy::stop;
  int nan_skip_limit = 10;
  double ema = 0;  ///< 0: no averaged weights
};

/// The scaling of learning rates by the data-parallel size.
enum class RateScaling : std::uint8_t { none, sqrt, linear };
constexpr auto words_of(RateScaling) {
  using enum RateScaling;
  return words<RateScaling>({{none, "none"}, {sqrt, "sqrt"}, {linear, "linear"}});
}

/// The settings of all update rules, with their defaults, in the order of their table
/// (src/optim/update_rule.hpp). Only a rule knows the type of its own.
SettingsList settings_of_rules();

/// The precision of the optimizer's moments.
enum class MomentPrecision : std::uint8_t { fp32, bf16 };
constexpr auto words_of(MomentPrecision) {
  return words<MomentPrecision>({{MomentPrecision::fp32, "fp32"}, {MomentPrecision::bf16, "bf16"}});
}

struct OptimizerSection {
  std::string name = "adamw";
  double learning_rate = 1e-3;
  double min_lr = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;     ///< derived: train.max_steps
  std::string schedule = "cosine";  ///< constant | cosine | linear | inverse_sqrt | wsd
  std::int64_t wsd_decay_steps = 0;
  std::string wsd_decay_shape = "linear";  ///< linear | cosine | exponential | minus_sqrt
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1;
  MomentPrecision moment_precision = MomentPrecision::fp32;  ///< fp64 trains with fp64 moments
  double momentum = 0.9, trust_coefficient = 1e-3;           ///< lars
  double grad_clip = 1.0;                                    ///< 0: no clipping
  RateScaling scale_lr = RateScaling::none;
  TextMap scale;  ///< factors on the learning rate, by patterns of parameter names
  SettingsList rules = settings_of_rules();
};

inline constexpr int kMostTensorRanks = 8;

/// The training state that is kept outside of device memory.
enum class OffloadChoice : std::uint8_t { none, optimizer, all, file };
constexpr auto words_of(OffloadChoice) {
  using enum OffloadChoice;
  return words<OffloadChoice>(
      {{none, "none"}, {optimizer, "optimizer"}, {all, "all"}, {file, "file"}});
}

enum class RequestedTransport : std::uint8_t { automatic, mpi, node, nccl, staged };
constexpr auto words_of(RequestedTransport) {
  using enum RequestedTransport;
  return words<RequestedTransport>(
      {{automatic, "auto"}, {mpi, "mpi"}, {node, "node"}, {nccl, "nccl"}, {staged, "staged"}});
}
/// True for the transports of GPU memory.
constexpr bool needs_gpu(RequestedTransport transport) {
  return transport == RequestedTransport::nccl || transport == RequestedTransport::staged;
}

/// The schedules of training: forward_only has no word.
constexpr auto words_of(ScheduleKind) {
  using enum ScheduleKind;
  return words<ScheduleKind>(
      {{one_f_one_b, "1f1b"}, {gpipe, "gpipe"}, {interleaved, "interleaved"}, {zb_h1, "zb-h1"}});
}

struct ParallelSection {
  int tensor = 1, pipeline = 1, context = 1;
  RequestedContextMode context_mode = RequestedContextMode::automatic;
  int data = 0;  ///< 0 means "auto": the ranks that remain
  bool sequence = false;
  int zero = 0;
  std::string zero_group = "all";  ///< all | node | a number of consecutive data-parallel ranks
  int zero_prefetch = 1;           ///< buckets
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int virtual_stages = 1;
  OffloadChoice offload = OffloadChoice::none;
  bool offload_gradients = false;
  std::string offload_dir;  ///< "": TMPDIR, or /tmp
  std::string order = "tp-cp-dp-pp";
  RequestedTransport transport = RequestedTransport::automatic;
  bool share_device = false;
  bool register_memory = true;
  /// Multiprocessors that products leave free beside collectives; 0 means "auto": none, until a
  /// card was measured.
  int free_sms = 0;
  double timeout = 300;  ///< seconds
};

struct EvalSection {
  std::int64_t interval = 250;
  bool ema = false;
};

/// The use of saves in the background.
enum class AsyncSaves : std::uint8_t { automatic, always, never };
constexpr auto words_of(AsyncSaves) {
  using enum AsyncSaves;
  return words<AsyncSaves>({{automatic, "auto"}, {always, "true"}, {never, "false"}});
}

struct CheckpointSection {
  static constexpr std::int64_t kAutoInterval = -1;
  std::int64_t interval = 500;  ///< steps; 0: never; kAutoInterval: from the cost of a save
  double mtbf = 0;  ///< hours between failures of the whole job; 0: from the number of nodes
  AsyncSaves async = AsyncSaves::automatic;
  int keep = 2;
  std::int64_t keep_every = 0;
  bool best = true;
  std::string resume = "auto";  ///< auto | none | a path
  TextOrMap init_from;          ///< "" or a path; or paths by patterns of parameter names
  std::vector<std::string> init_take, init_skip;
  bool store_base = false;  ///< frozen weights of init_from are stored in every checkpoint
  std::vector<std::string> allow_changes;  ///< keys, or only kAllowAll
  static constexpr const char* kAllowAll = "true";
  bool on_the_way() const {
    return interval != 0;
  }  ///< true if the run saves before and at its end
  /// The path if init_from is a single path, else "".
  std::string init_run() const {
    const auto* path = std::get_if<std::string>(&init_from);
    return path != nullptr ? *path : "";
  }
  /// The paths by patterns; empty if init_from is a single path or empty.
  TextMap init_map() const {
    const auto* map = std::get_if<TextMap>(&init_from);
    return map != nullptr ? *map : TextMap();
  }
};

/// The form of the lines of steps on the standard output.
enum class LogStyle : std::uint8_t { full, compact };
constexpr auto words_of(LogStyle) {
  return words<LogStyle>({{LogStyle::full, "full"}, {LogStyle::compact, "compact"}});
}

struct LogSection {
  std::int64_t interval = 10;
  LogStyle style = LogStyle::full;
  bool all_ranks = false;
  bool verbose = false;
  bool tensorboard = false;
  std::string prometheus;  ///< file; "": none
};

/// Limits and intervals of the checks during a run. Seconds of 0: parallel.timeout; steps of 0:
/// never.
struct WatchSection {
  double start = 0, first_step = 0, save = 0, evaluation = 0;  ///< seconds
  double still = 30;                                           ///< seconds; 0: never
  std::int64_t weights = 1000;                                 ///< steps
  std::int64_t ranks = 100;                                    ///< steps
  bool calls = false;
};

/// Failures caused on purpose, for tests. -1 and "" mean off.
struct FaultSection {
  bool enable = false;  ///< otherwise everything below must have its default
  int kill_rank = -1, hang_rank = -1, pause_rank = -1, throw_rank = -1, slow_rank = -1;
  std::int64_t kill_step = -1, hang_step = -1, pause_step = -1, throw_step = -1, slow_step = -1;
  double slow_ms = 100;
  std::string phase = "start";  ///< see Faults::in_phase
  int nan_rank = -1, flip_rank = -1;
  std::int64_t nan_step = -1, flip_step = -1;
  std::string nan_parameter, flip_parameter;
  int write_fail_rank = -1;
  std::int64_t write_fail_step = -1, write_short_step = -1, disk_full_step = -1;
  std::int64_t truncate_save_step = -1, corrupt_save_step = -1;
  std::string truncate_data, corrupt_data;  ///< "" or the path of a file
  std::int64_t stop_step = -1;
  std::string kill_in_save;
  friend bool operator==(const FaultSection&, const FaultSection&) = default;
};

/// The settings of all families in the table; their types are known only to the families
/// (choir/models/family.hpp). Copies are deep.
class AllSettings {
 public:
  AllSettings() = default;  ///< no settings, for a deck that is assigned later
  explicit AllSettings(const FamilyTable& table);  ///< all settings have their defaults

  /// The table whose families these are. Throws Error if there is none.
  const FamilyTable& table() const {
    CHOIR_CHECK(table_ != nullptr, "a deck without a table of families");
    return *table_;
  }
  /// Indexed in the order of the table of families.
  HeldSettings& operator[](std::size_t family) { return held_[family]; }
  /// The settings of the family whose settings have this type.
  template <class Settings>
  const Settings& of() const {
    if (const Settings* found = held_.template find<Settings>()) return *found;
    throw Error(ExitCode::other, "settings of a family that is not in the table");
  }
  template <class Settings>
  Settings& of() {
    return const_cast<Settings&>(std::as_const(*this).template of<Settings>());
  }

 private:
  const FamilyTable* table_ = nullptr;
  SettingsList held_;
};

struct Deck {
  Deck() = default;  ///< a deck that is assigned later: it has no family
  /// A deck in which all keys have their defaults. The table must outlive the deck and its copies.
  explicit Deck(const FamilyTable& table) : families(table) {}

  RunSection run;
  ModelSection model;
  AllSettings families;
  DataSection data;
  TrainSection train;
  OptimizerSection optimizer;
  ParallelSection parallel;
  EvalSection eval;
  CheckpointSection checkpoint;
  LogSection log;
  WatchSection watch;
  FaultSection fault;
  RequestedDevice device = RequestedDevice::automatic;

  std::string source;  ///< path of the deck file as given
  KeyOrigins origins;  ///< origins of all keys that are not at their defaults

  /// The family that model.type names.
  const ModelFamily& family() const { return families.table().named(model.type); }
  /// True if the user gave the value of `key`: it is neither a default nor derived.
  bool given(const std::string& key) const;
  /// Records that the program computed the value of `key` ("model.vocab_size").
  void mark_derived(const std::string& key) { origins[key] = {KeySource::derived, ""}; }
};

/// Reads the file and calls parse_deck. Throws DeckError.
Deck read_deck(const FamilyTable& table, const std::string& path,
               const std::vector<std::string>& overrides);

/// Parses a deck from text, so that one rank can read the file and broadcast it. `source` names the
/// file in messages and, without its extension, the run. Throws one DeckError that lists all
/// problems. Sets the derived members (run.name, run.dir, model.n_kv_head, model.ffn_width,
/// optimizer.decay_steps) except the batch, which resolve_batch sets, and model.vocab_size, which
/// the data determine. The table must outlive the deck and its copies.
Deck parse_deck(const FamilyTable& table, const std::string& text, const std::string& source,
                const std::vector<std::string>& overrides);

/// Returns the problem that the table alone finds with a value of a key, or with an unknown key; ""
/// if there is none. `word` is the value as in an override.
std::string refusal_of(const FamilyTable& table, const std::string& key, const std::string& word);
/// Returns a copy with overrides applied as by parse_deck. All problems (values, cross checks) are
/// appended to `problems`; derived members stay as they are.
Deck vary_deck(const Deck& deck, const std::vector<std::string>& overrides,
               std::vector<KeyProblem>& problems);

/// The table of `--describe`, and a JSON schema (draft 2020-12) for editors.
std::string describe_deck(const FamilyTable& table);
std::string deck_schema(const FamilyTable& table);

/// The deck as JSON that parse_deck accepts again, with "sources" (default, file, override or
/// derived for each key) and "derived" (the computed values; their keys keep the default, so that
/// the document can be run on another number of ranks).
std::string resolved_json(const Deck& deck);
/// The deck for people: given and derived values line by line, defaults in a paragraph. Keys that
/// concern neither the family nor the device are listed only if given. `cuda`: the run uses GPUs.
std::string deck_listing(const Deck& deck, bool cuda);
/// Differences between `now` and a deck that resolved_json() wrote, in the order of the table. Keys
/// of other families are skipped because the decks of early checkpoints have derived values for
/// them.
std::vector<KeyChange> deck_changes(const std::string& resolved, const Deck& now);
/// How this key may change when a run continues.
OnResume on_resume(const FamilyTable& table, const std::string& key);
/// 16 hex digits (FNV-1a) over all values. Equal decks have equal digests whatever the origins of
/// their values.
std::string deck_digest(const Deck& deck);

/// Batch of one optimizer step: global = micro * accum * data_parallel. For families without a
/// fixed shape, `global` is the number of micro-batches per step, `accum` the largest share of a
/// rank, and `micro` 1.
struct BatchSizes {
  std::int64_t micro = 0, accum = 0, global = 0;
  int data_parallel = 1;
  std::int64_t micro_batches() const { return accum * data_parallel; }
};

/// Derives the third of micro, accum and global from the other two (0: not given); if all three are
/// given they must agree. With fewer than two, accum is 1 and micro 8. Throws DeckError with the
/// nearest legal values.
BatchSizes resolve_batch_sizes(std::int64_t micro, std::int64_t accum, std::int64_t global,
                               int data_parallel);
/// Does the same for a deck and a known data-parallel size: sets the members and marks the derived
/// ones; checks parallel.data against the size. With train.reproducible it also calls
/// require_reproducible.
BatchSizes resolve_batch(Deck& deck, int data_parallel);

/// Throws DeckError with the nearest legal values unless ranks and micro-batches per rank are
/// powers of two: reproducible mode sums gradients in a binary tree.
void require_reproducible(const BatchSizes& batch);

/// Parses "3:7" to {3, 7}: steps are counted from 1, both ends are included. {0, 0} for "". Throws
/// DeckError.
struct StepRange {
  std::int64_t first = 0, last = 0;
};
StepRange profile_range(const std::string& text);

/// Parses optimizer.scale to factors, which must be finite and above 0. Throws DeckError.
std::map<std::string, double> rate_factors(const TextMap& scale);

/// The layout that a deck requests on `ranks` ranks. Throws DeckError with a table of the nearest
/// legal layouts if the axis sizes do not match the number of ranks.
Layout layout_of(const Deck& deck, int ranks);

}  // namespace choir
