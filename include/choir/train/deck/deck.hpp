#pragma once
// The deck: everything a run is told, as a typed struct. The initialisers below are the defaults;
// what each key means, its unit and its limits stand in src/train/deck/deck_keys*.cpp and are
// printed by `choir train --describe`. All functions here are local and pure but for reading the
// file.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/core/key_table.hpp"
#include "choir/model/model_config.hpp"

namespace choir {

struct RunSection {
  std::string dir;   ///< derived: runs/<name>
  std::string name;  ///< derived: the deck's file name without its extension
  std::int64_t seed = 1337;
  double walltime = 0;          ///< seconds; 0: no limit
  double walltime_margin = 60;  ///< seconds kept for the last save
};

/// A GptConfig whose zeros are derived later: vocab_size from the data, the others from the rest.
inline GptConfig undetermined_gpt() {
  GptConfig gpt;
  gpt.vocab_size = gpt.n_kv_head = gpt.ffn_width = 0;
  return gpt;
}
/// F where none is given: 4 C, for swiglu 8/3 C rounded up to a multiple of 64.
std::int64_t default_ffn_width(const GptConfig& gpt);

struct ModelSection {
  std::string type = "gpt";  ///< gpt | fastconformer
  GptConfig gpt = undetermined_gpt();
  /// What both kinds have is read into `gpt`; see speech_of().
  FastConformerConfig fastconformer;
  bool speech() const { return type == "fastconformer"; }
};

struct DataSection {
  std::vector<std::string> train, val;
  std::string format = "auto";     ///< auto | text | native | nanogpt | megatron | synthetic
  std::string tokenizer = "char";  ///< char | byte, for text prepared on first use
  double val_fraction = 0.1;
  std::string reader = "own";  ///< own | collective | scatter | node
  TextMap hints;
  std::string preload = "none";  ///< none | host | device
  int readers_every = 0;         ///< 0: one a node
  int prefetch = 2;
};

/// Keys of data.* that only speech has.
struct SpeechSection {
  std::string labels = "char";      ///< NAME of labels.NAME.bin and tokenizer.NAME.json
  std::string input_cfg;            ///< instead of data.train: JSON or the name of such a file
  double temperature = 1;           ///< of its levels, where it has none of its own
  TextMap validation;               ///< beside data.val: named sets, see eval_set_of()
  double batch_duration = 60;       ///< seconds of a micro-batch
  double quadratic_duration = 0;    ///< seconds; 0: no penalty
  std::int64_t max_utterances = 0;  ///< of a micro-batch; 0: any number
  std::int64_t buckets = 16, label_buckets = 1;
  std::vector<std::string> bucket_bins, bucket_sizes;  ///< empty: estimated
  std::int64_t window = 4096;                          ///< utterances
  double min_duration = 0, max_duration = 0;           ///< seconds; 0: no bound
  double min_labels_per_second = 0, max_labels_per_second = 0;
  std::string shard_seed;       ///< "": run.seed, an integer, or "randomized"
  std::string on_bad = "stop";  ///< stop | skip
};

struct TrainSection {
  std::string precision = "fp32";  ///< see choir/nn/precision.hpp
  std::int64_t loss_scale = 0;     ///< 0 is written "dynamic"
  std::int64_t loss_scale_window = 2000;
  bool cuda_graph = true;
  int steps_in_flight = 0;  ///< 0 is written "auto"
  int micro_batch_size = 0;
  int global_batch_size = 0;
  int grad_accum = 0;
  int micro_batches = 0;  ///< of a step, on all ranks; speech
  std::int64_t max_steps = 1000;
  bool reproducible = false;
  double label_smoothing = 0;
  std::string recompute = "none";  ///< none | selective | full
  std::string profile;             ///< "" or "k:l"
  std::vector<std::string> freeze, unfreeze;
  std::string nan_policy = "stop";  ///< stop | skip
  int nan_skip_limit = 10;
};

struct OptimizerSection {
  std::string name = "adamw";
  double learning_rate = 1e-3;
  double min_lr = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;     ///< derived: train.max_steps
  std::string schedule = "cosine";  ///< constant | cosine | linear | inverse_sqrt
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1;
  double grad_clip = 1.0;         ///< 0: no clipping
  std::string scale_lr = "none";  ///< none | sqrt | linear
};

inline constexpr int kMostTensorRanks = 8;

struct ParallelSection {
  int tensor = 1, pipeline = 1, context = 1;
  int data = 0;  ///< 0 is written "auto": the ranks that remain
  bool sequence = false;
  int zero = 0;
  std::string zero_group = "all";  ///< all | node | a number of consecutive data-parallel ranks
  int zero_prefetch = 1;           ///< buckets
  std::string schedule = "1f1b";
  int virtual_stages = 1;
  std::string offload = "none";  ///< none | optimizer | all | file
  std::string offload_dir;       ///< "": TMPDIR, or /tmp
  std::string order = "tp-cp-dp-pp";
  std::string transport = "auto";  ///< auto | mpi | node | nccl | staged
  bool share_device = false;
  double timeout = 300;  ///< seconds
};

struct EvalSection {
  std::int64_t interval = 250;
  std::int64_t batches = 0;  ///< 0: all of the validation data
  int sample_tokens = 200;   ///< 0: no sample
  std::string sample_prompt = "\n";
  double sample_temperature = 0.8;
  int sample_top_k = 0;  ///< 0: all
};

struct CheckpointSection {
  static constexpr std::int64_t kAutoInterval = -1;
  std::int64_t interval = 500;  ///< steps; 0: never; kAutoInterval: by what saves cost
  double mtbf = 0;              ///< hours between failures of the whole job; 0: from its nodes
  std::string async = "auto";   ///< auto | true | false
  int keep = 2;
  std::int64_t keep_every = 0;
  bool best = true;
  std::string resume = "auto";  ///< auto | none | a path
  std::string init_from;        ///< "" or a path
  std::vector<std::string> init_take, init_skip;
  bool on_the_way() const { return interval != 0; }  ///< saves before the end, and there
};

struct LogSection {
  std::int64_t interval = 10;
  bool all_ranks = false;
  bool tensorboard = false;
};

/// What is watched while a run runs. Seconds of 0: parallel.timeout; steps of 0: never.
struct WatchSection {
  double start = 0, first_step = 0, save = 0, evaluation = 0;  ///< seconds
  double still = 30;                                           ///< seconds; 0: never
  std::int64_t weights = 1000;                                 ///< steps
  std::int64_t ranks = 100;                                    ///< steps
  bool calls = false;
};

/// Failures made on purpose, for tests. -1 and "" are off.
struct FaultSection {
  bool enable = false;  ///< without it, everything below must be as it is here
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

struct Deck {
  RunSection run;
  ModelSection model;
  DataSection data;
  SpeechSection speech;
  TrainSection train;
  OptimizerSection optimizer;
  ParallelSection parallel;
  EvalSection eval;
  CheckpointSection checkpoint;
  LogSection log;
  WatchSection watch;
  FaultSection fault;
  std::string device = "auto";  ///< auto | cpu | cuda

  std::string source;  ///< the deck file as named
  KeyOrigins origins;  ///< of every key that is not at its default

  /// Notes that the program computed the value of `key` ("model.vocab_size").
  void mark_derived(const std::string& key) { origins[key] = {KeySource::derived, ""}; }
};

/// Reads the file, then parse_deck. Throws DeckError.
Deck read_deck(const std::string& path, const std::vector<std::string>& overrides);

/// From text, so that one rank reads and broadcasts. `source` names the file in messages and,
/// without its extension, the run. Throws one DeckError that lists everything wrong. Derived
/// members are set (run.name, run.dir, model.n_kv_head, model.ffn_width, optimizer.decay_steps);
/// the batch and model.vocab_size are left to resolve_batch and to the data.
Deck parse_deck(const std::string& text, const std::string& source,
                const std::vector<std::string>& overrides);

/// What the table alone says to a value of a key, or to a key it does not know; "" when it accepts
/// it. `word` as in an override.
std::string refusal_of(const std::string& key, const std::string& word);
/// A copy with overrides, as parse_deck would have read it. Everything wrong with it (values, cross
/// checks) is appended to `problems`; members that follow from others stay as they are.
Deck vary_deck(const Deck& deck, const std::vector<std::string>& overrides,
               std::vector<KeyProblem>& problems);

/// The table of `--describe`, and a JSON schema (draft 2020-12) for editors.
std::string describe_deck();
std::string deck_schema();

/// The deck as JSON that parse_deck accepts again, with "sources" (default, file, override or
/// derived for each key) and "derived" (the computed values; their keys keep the default, so that
/// the document can be run on another number of ranks).
std::string resolved_json(const Deck& deck);
/// For the log: given and derived values line by line, defaults in a paragraph.
std::string deck_listing(const Deck& deck);
/// 16 hex digits (FNV-1a) over all values; equal decks have equal digests wherever values came
/// from.
std::string deck_digest(const Deck& deck);

/// One optimizer step: global = micro * accum * data_parallel. Of speech `global` is the number of
/// micro-batches of a step, `accum` the largest share of a rank, and micro 1.
struct BatchSizes {
  std::int64_t micro = 0, accum = 0, global = 0;
  int data_parallel = 1;
  std::int64_t micro_batches() const { return accum * data_parallel; }
};

/// Give two of micro, accum, global (0: not given) and the third follows; three must agree. Throws
/// DeckError with the nearest legal values.
BatchSizes resolve_batch_sizes(std::int64_t micro, std::int64_t accum, std::int64_t global,
                               int data_parallel);
/// The same on a deck, for a known data-parallel size: fills the members and marks the derived one;
/// parallel.data is checked against it. With train.reproducible also require_reproducible.
BatchSizes resolve_batch(Deck& deck, int data_parallel);

/// Reproducible mode sums gradients in a binary tree: ranks and micro-batches per rank must be
/// powers of two. Throws DeckError with the nearest legal values.
void require_reproducible(const BatchSizes& batch);

/// The encoder that the deck describes: keys it shares with language models count where given.
FastConformerConfig speech_of(const Deck& deck);

/// Every complaint about a model: what does not divide, with the nearest legal values. n_kv_head
/// may still be 0. Also of use for the models of checkpoints.
std::vector<KeyProblem> check_model(const GptConfig& gpt);

/// Every complaint about a model divided among `ranks` of the tensor axis, and about its tiles
/// then.
std::vector<KeyProblem> check_tensor_size(const GptConfig& gpt, std::int64_t ranks);

/// "3:7" -> {3, 7}, steps counted from 1, both included; {0, 0} for "". Throws DeckError.
struct StepRange {
  std::int64_t first = 0, last = 0;
};
StepRange profile_range(const std::string& text);

}  // namespace choir
