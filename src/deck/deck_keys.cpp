// The keys of a deck that do not belong to a family of models: their help, units and limits. The
// keys of `fault` are in deck_fault.cpp.

#include <fmt/core.h>

#include "src/deck/deck_tables.hpp"
#include "src/optim/update_rule.hpp"

namespace choir::deck {
void add_run_keys(Table& table) {
  auto run = table.section("run", &Deck::run);
  run.add("dir", &RunSection::dir, "path",
          "Directory to which the run writes. Empty: runs/<run.name>.");
  run.add("name", &RunSection::name, "", "Name of the run. Empty: the name of the deck file.")
      .checked("no '/', not \".\" or \"..\"", [](const KeyValue& value) -> std::string {
        const auto& name = std::get<std::string>(value);
        if (name == "." || name == "..") return "would lead out of runs/";
        return name.find('/') == name.npos ? "" : "a name holds no '/'; set run.dir for a path";
      });
  run.add("seed", &RunSection::seed, "",
          "Seed of all random numbers: initialisation, dropout, data order and samples.")
      .at_least(0)
      .when_resumed(OnResume::fixed);
  run.add("walltime", &RunSection::walltime, "seconds",
          "Time limit of the job. Shortly before it expires the run saves a checkpoint and exits "
          "with code 75. 0: no limit.")
      .in_seconds()
      .at_least(0);
  run.add("walltime_margin", &RunSection::walltime_margin, "seconds",
          "Time before the end of run.walltime at which the last save begins.")
      .in_seconds()
      .at_least(0);
}

void add_model_keys(Table& table, const FamilyTable& families) {
  auto model = table.section("model", &Deck::model);
  std::vector<std::string> names;
  for (const ModelFamily* family : families.all()) names.emplace_back(family->name());
  model.add("type", &ModelSection::type, "", "Family of the model.").one_of(std::move(names));
}

void add_data_keys(Table& table) {
  auto data = table.section("data", &Deck::data);
  data.add("train", &DataSection::train, "paths",
           "Files or folders of training data. On first use, text files are tokenised and speech "
           "manifests are packed.")
      .when_resumed(OnResume::same_contents);
  data.add("val", &DataSection::val, "paths",
           "Files or folders of validation data. Empty: the validation part that was set aside "
           "when the text was prepared.")
      .when_resumed(OnResume::same_contents);
  data.add("format", &DataSection::format, "",
           "Format of the data. auto: detected from the first file. synthetic: random tokens, no "
           "file is read.")
      .when_resumed(OnResume::same_contents);
  data.add("reader", &DataSection::reader, "",
           "How ranks read data. own: each rank reads its own slice. collective: "
           "MPI_File_read_at_all. scatter: a few ranks read large blocks and scatter them. node: "
           "one rank per node fills shared memory.")
      .when_resumed(OnResume::free);
  data.add("hints", &DataSection::hints, "",
           "MPI-IO hints such as striping_factor or cb_nodes. The log shows the values that the "
           "MPI library adopted.")
      .when_resumed(OnResume::free);
  data.add(
          "preload", &DataSection::preload, "",
          "Where to keep the whole data set during the run. host: in host memory. device: training "
          "data in the memory of every rank's device, where micro-batches are gathered; on CPU "
          "this is the memory of the rank.")
      .when_resumed(OnResume::free);
  data.add("readers_every", &DataSection::readers_every, "ranks",
           "One reader per N ranks, for data.reader = scatter. 0: one per node.")
      .at_least(0)
      .when_resumed(OnResume::free)
      .only_with("reader", {"scatter"});
  data.add("prefetch", &DataSection::prefetch, "micro-batches",
           "Micro-batches that a background thread reads ahead. 0: read when needed.")
      .at_least(0)
      .at_most(64)
      .when_resumed(OnResume::free);
}

namespace {

/// The keys that belong to a single rule.
void add_keys_of_rules(Table& table) {
  const auto current = [](void* deck) {
    const auto rules = update_rules();
    const auto found =
        std::ranges::find(rules, static_cast<Deck*>(deck)->optimizer.name, &UpdateRule::name);
    return static_cast<std::size_t>(found - rules.begin());
  };
  SettingsList defaults = settings_of_rules();
  for (std::size_t at = 0; at < update_rules().size(); ++at)
    for (const Key& key : update_rules()[at]->own_keys().keys())
      table.adopt(
          key, at, key.get(key, defaults[at].object()),
          [at](void* deck) { return static_cast<Deck*>(deck)->optimizer.rules[at].object(); },
          current);
}

}  // namespace

void add_optimizer_keys(Table& table) {
  using Part = OptimizerSection;
  auto optimizer = table.section("optimizer", &Deck::optimizer);
  std::vector<std::string> rules;
  std::string about = "Optimizer.";
  for (const UpdateRule* rule : update_rules()) {
    rules.emplace_back(rule->name());
    about += fmt::format(" {}", rule->about());
  }
  optimizer.add("name", &Part::name, "", about)
      .one_of(std::move(rules))
      .when_resumed(OnResume::fixed);
  optimizer.add("learning_rate", &Part::learning_rate, "", "Peak learning rate.").above(0);
  optimizer
      .add(
          "min_lr", &Part::min_lr, "",
          "Final learning rate, from optimizer.decay_steps on (cosine, linear, wsd), and the lower "
          "limit of inverse_sqrt.")
      .at_least(0)
      .not_with("schedule", {"constant"});
  optimizer
      .add("warmup_steps", &Part::warmup_steps, "steps",
           "Steps over which the learning rate rises linearly from 0.")
      .at_least(0);
  optimizer
      .add("decay_steps", &Part::decay_steps, "steps",
           "Step at which cosine, linear and wsd reach min_lr. 0: train.max_steps.")
      .at_least(0)
      .not_with("schedule", {"constant", "inverse_sqrt"});
  optimizer
      .add("schedule", &Part::schedule, "",
           "Shape of the learning rate after the warm-up. wsd (warm-up, stable, decay): constant, "
           "except for the last optimizer.wsd_decay_steps. The checkpoint before these is kept, "
           "and a run can continue from it to any other end.")
      .one_of({"constant", "cosine", "linear", "inverse_sqrt", "wsd"});
  optimizer
      .add("wsd_decay_steps", &Part::wsd_decay_steps, "steps",
           "Length of the decay of optimizer.schedule = wsd, which ends at optimizer.decay_steps. "
           "0: no decay.")
      .at_least(0)
      .only_with("schedule", {"wsd"});
  optimizer
      .add("wsd_decay_shape", &Part::wsd_decay_shape, "",
           "Shape of the decay of optimizer.schedule = wsd. After a fraction r of it, the learning "
           "rate is this far from min_lr towards its peak. linear: 1 - r. cosine: "
           "(1 + cos(pi r)) / 2. exponential: 2 * 0.5^r - 1. minus_sqrt: 1 - sqrt(r).")
      .one_of({"linear", "cosine", "exponential", "minus_sqrt"})
      .only_with("schedule", {"wsd"});
  optimizer.add("beta1", &Part::beta1, "", "Decay of the first moment (adamw).")
      .at_least(0)
      .below(1);
  optimizer.add("beta2", &Part::beta2, "", "Decay of the second moment (adamw).")
      .at_least(0)
      .below(1);
  optimizer
      .add("moment_precision", &Part::moment_precision, "",
           "Precision of the moments (adamw, muon). fp32: as the gradient sums (fp64 with fp64). "
           "bf16: half the memory; each moment is rounded to one of its two neighbours at random, "
           "the same in every layout. A run that continues with the other precision converts its "
           "moments.")
      .not_with("train.precision", {"fp64"});
  optimizer
      .add("epsilon", &Part::epsilon, "",
           "Constant that prevents divisions by zero. adamw: added to the square root of the "
           "second moment. lars: added to the denominator of the factor that "
           "optimizer.trust_coefficient describes. Gradients far below it count as zero.")
      .above(0);
  optimizer
      .add("weight_decay", &Part::weight_decay, "",
           "Weight decay, applied to matrices only. adamw: decoupled. lars: added to the gradient "
           "(0.0005 in the paper).")
      .at_least(0);
  optimizer
      .add("momentum", &Part::momentum, "",
           "Fraction of the previous step that is added to a step (lars).")
      .at_least(0)
      .below(1);
  optimizer
      .add("trust_coefficient", &Part::trust_coefficient, "",
           "Trust coefficient (lars). The learning rate of a matrix w with gradient g is "
           "multiplied by trust_coefficient * |w| / (|g| + weight_decay * |w| + epsilon).")
      .above(0);
  optimizer
      .add("grad_clip", &Part::grad_clip, "",
           "Maximum global gradient norm; larger gradients are scaled down. 0: no clipping.")
      .at_least(0);
  optimizer.add("scale_lr", &Part::scale_lr, "",
                "Scaling of the learning rates by the data-parallel size or its square root.");
  optimizer
      .add("scale", &Part::scale, "factors",
           "Factors on the learning rates of some parameters, by patterns of their names: "
           "{\"encoder.*\": 0.1}. Their weight decay is scaled too.")
      .checked("{PATTERN: FACTOR}, FACTOR > 0", [](const KeyValue& value) -> std::string {
        try {
          rate_factors(std::get<TextMap>(value));
        } catch (const DeckError& error) {
          return error.what();
        }
        return {};
      });
  add_keys_of_rules(table);
}

void add_train_keys(Table& table) {
  using Part = TrainSection;
  auto train = table.section("train", &Deck::train);
  train.add("precision", &Part::precision, "",
            "Precision of activations and matrix products. Gradient sums and, unless "
            "optimizer.moment_precision says otherwise, moments are fp32 (with fp64: fp64). -mixed "
            "keeps fp32 master weights; bf16-true updates its bf16 weights with "
            "stochastic rounding.");
  train
      .add("loss_scale", &Part::loss_scale, "",
           "Factor on the loss that is removed from the gradients again (fp16-mixed only). "
           "dynamic: starts at 65536, doubles after train.loss_scale_window updates without "
           "overflow and halves after an overflow.")
      .or_word("dynamic")
      .at_least(0)
      .only_with("precision", {"fp16-mixed"});
  train
      .add("loss_scale_window", &Part::loss_scale_window, "updates",
           "Updates without overflow after which a dynamic loss scale is doubled.")
      .at_least(1)
      .only_with("precision", {"fp16-mixed"})
      .only_with("loss_scale", {"dynamic"});
  train.add("cuda_graph", &Part::cuda_graph, "",
            "Record the kernels of a step as a CUDA graph and launch them as a whole (cuda only).");
  train
      .add("programmatic_dependent_launch", &Part::programmatic_dependent_launch, "",
           "Let each kernel of a recorded step begin while the one ahead of it still runs, whose "
           "results it waits for (cuda only, sm_90 and newer; the other keys and the bits of the "
           "results stay the same). Nobody has measured yet what that gains.")
      .only_with("cuda_graph", {"true"})
      .when_resumed(OnResume::free);
  train.add("time_products", &Part::time_products, "",
            "Time the first eight algorithms that cuBLASLt proposes for each matrix product once "
            "at the start, and use the fastest on all ranks (cuda only). The choice is stored in "
            "checkpoints and in RUN/products.json, and a resumed run uses it unless the card, the "
            "driver, the library or the products have changed. Another run may choose "
            "differently, so train.reproducible = true sets this to false.");
  train
      .add("steps_in_flight", &Part::steps_in_flight, "steps",
           "Steps that are queued before the result of the first is read. The results do not "
           "change. auto: 1 on CPU, 2 on other devices.")
      .or_word("auto")
      .at_least(0)
      .at_most(8);
  train
      .add("micro_batch_size", &Part::micro_batch_size, "sequences",
           "Sequences per rank and pass. The value is never changed silently: on n ranks set a "
           "train.micro_batch_size that divides global_batch_size / n. 0: derived from the other "
           "two; 8 where no global batch is given.")
      .at_least(0);
  train
      .add("global_batch_size", &Part::global_batch_size, "sequences",
           "Sequences per step over all ranks: micro_batch_size x grad_accum x data-parallel size. "
           "0: derived from the other two.")
      .at_least(0);
  train
      .add("grad_accum", &Part::grad_accum, "micro-batches",
           "Passes of each rank per step. 0: derived from the other two; 1 where one of them is "
           "missing.")
      .at_least(0);
  train
      .add("micro_batches", &Part::micro_batches, "micro-batches",
           "Micro-batches per step on all ranks together (speech models). Each has "
           "data.batch_duration. All ranks have equally many; some may be empty.")
      .at_least(0)
      .at_most(1 << 20);
  train
      .add("max_steps", &Part::max_steps, "steps",
           "Steps of the whole run, including those before it was resumed.")
      .at_least(0);
  train.add("reproducible", &Part::reproducible, "",
            "Compute bitwise the same weights for every split of a step's micro-batches into ranks "
            "and passes (both must be powers of two).");
  train.add(
      "recompute", &Part::recompute, "",
      "Values that backward recomputes instead of keeping them in memory. The results do not "
      "change. selective: results of norms and activations. full: every block from its input, "
      "at a quarter more FLOPs.");
  train
      .add(
          "profile", &Part::profile, "steps",
          "Steps k to l of which a trace for Perfetto or chrome://tracing is written. On a GPU, "
          "`nsys profile --capture-range=cudaProfilerApi` records the same steps. Empty: no trace.")
      .checked("\"k:l\", 1 <= k <= l", [](const KeyValue& value) -> std::string {
        try {
          profile_range(std::get<std::string>(value));
        } catch (const DeckError&) {
          return "expected \"k:l\" with steps 1 <= k <= l, as \"3:5\"";
        }
        return {};
      });
  train.add("freeze", &Part::freeze, "patterns",
            "Names of parameters that are not trained, with * and ?. They need no gradients, no "
            "moments and no communication.");
  train.add("unfreeze", &Part::unfreeze, "patterns",
            "Names of parameters to train despite train.freeze or model.lora, with * and ?.");
  train.add("frozen_precision", &Part::frozen_precision, "",
            "Precision of parameters that are not trained. master: the same as the master weights "
            "of the others. bf16: with bf16-mixed in bf16 alone, 2 bytes each instead of 6; the "
            "results do not change. nf4, int8: matrices of layers with adapters are quantised to "
            "4.127 or 8.5 bits a weight (QLoRA), and exist in the type of computation while their "
            "layer computes; other parameters are as with bf16 if that is legal, else masters. "
            "Needs model.lora and checkpoint.init_from; checkpoints keep only the adapters.");
  train.add("nan_policy", &Part::nan_policy, "",
            "Reaction to a loss or gradient that is not finite. stop: end the run and name the "
            "tensors. skip: skip the update.");
  train
      .add("nan_skip_limit", &Part::nan_skip_limit, "updates",
           "Number of consecutive skipped updates that stop the run with exit code 4.")
      .at_least(1);
  train
      .add("ema", &Part::ema, "",
           "Decay d of an exponential moving average of the weights: after every update, average = "
           "d * average + (1 - d) * weights, beginning with the weights after the first update. It "
           "does not change the training. eval.ema and --ema use it. 0: no average.")
      .at_least(0)
      .below(1);
}

void add_parallel_keys(Table& table) {
  using Part = ParallelSection;
  auto parallel = table.section("parallel", &Deck::parallel);
  parallel
      .add("tensor", &Part::tensor, "ranks",
           "Ranks that share each layer; heads, feed-forward width and vocabulary are divided "
           "among them.")
      .at_least(1)
      .at_most(kMostTensorRanks);
  parallel
      .add("pipeline", &Part::pipeline, "ranks",
           "Pipeline stages that share the layers, balanced by FLOPs including the embedding and "
           "the head.")
      .at_least(1);
  parallel
      .add("context", &Part::context, "ranks",
           "Ranks that share each sequence; positions are divided among them. See "
           "parallel.context_mode for attention.")
      .at_least(1);
  parallel.add(
      "context_mode", &Part::context_mode, "",
      "How attention works on sequences that are divided among context ranks. ulysses: an "
      "all-to-all exchanges positions for heads, so that parallel.context must divide the "
      "query heads of a tensor rank. gather: every rank gathers the keys and values of all "
      "positions. ring: keys and values circulate among the ranks, and a rank never holds "
      "more than those of two ranks (layers with a window gather). ring-ulysses: groups of "
      "neighbouring ranks, the largest that divide both ranks and heads, use ulysses, and "
      "keys and values circulate among the groups. The last three accept any number of ranks "
      "and assign positions in a zig-zag that balances causal work. auto: ulysses where the "
      "heads can be divided, else gather. Ignored on one rank.");
  parallel
      .add("data", &Part::data, "ranks",
           "Size of the data-parallel axis. auto: all remaining ranks. A number must match the "
           "ranks of the job.")
      .or_word("auto")
      .at_least(0);
  parallel.add("sequence", &Part::sequence, "",
               "Sequence parallelism: in norms, dropout and residuals each tensor rank holds only "
               "its share of the tokens.");
  parallel
      .add("zero", &Part::zero, "stage",
           "Training state that is sharded over the data-parallel ranks. 0: nothing. 1: moments, "
           "and master weights where a compute copy exists. 2: also gradients, which are reduced "
           "after every micro-batch (so their traffic grows with grad_accum). 3: also parameters, "
           "which are gathered around their use.")
      .at_least(0)
      .at_most(3);
  parallel
      .add("zero_group", &Part::zero_group, "ranks",
           "Consecutive data-parallel ranks (with their context ranks) that share one copy of the "
           "state sharded by parallel.zero; between such groups gradients are all-reduced.")
      .checked("all, node or a number that divides the data-parallel ranks",
               [](const KeyValue& value) -> std::string {
                 const auto& group = std::get<std::string>(value);
                 const bool number = !group.empty() && group.size() < 7 && group.front() != '0' &&
                                     group.find_first_not_of("0123456789") == std::string::npos;
                 if (number || group == "all" || group == "node") return {};
                 return "expected \"all\", \"node\" or a number of ranks, as \"4\"";
               })
      .only_with("zero", {"1", "2", "3"});
  parallel
      .add("zero_prefetch", &Part::zero_prefetch, "buckets",
           "Buckets (blocks) that are gathered ahead of their use with parallel.zero = 3. Each "
           "needs memory for one whole block.")
      .at_least(0)
      .at_most(64)
      .only_with("zero", {"3"});
  parallel.add("schedule", &Part::schedule, "", "Pipeline schedule. Ignored on one stage.");
  parallel
      .add("virtual_stages", &Part::virtual_stages, "",
           "Model pieces on each stage, for parallel.schedule = interleaved.")
      .at_least(1);
  parallel.add(
      "offload", &Part::offload, "",
      "State that is kept outside of device memory and streamed through it. optimizer: "
      "moments, and master weights where a compute copy exists, in host memory. all: also "
      "parameters (needs parallel.zero = 3). file: the same as optimizer, but in a file on a "
      "local disk. On CPU, optimizer and all are ignored because device memory is host memory.");
  parallel
      .add("offload_gradients", &Part::offload_gradients, "",
           "Also keep the slices of gradients outside of device memory, and add every micro-batch "
           "to them there: in host memory beside a GPU, and on CPU, with parallel.offload = file, "
           "in a file. Needs parallel.zero = 2 or 3.")
      .only_with("offload", {"optimizer", "all", "file"});
  parallel
      .add("offload_dir", &Part::offload_dir, "",
           "Directory on a local disk of the node, for parallel.offload = file. Each rank reserves "
           "its space at the start and leaves no file behind. Empty: TMPDIR, or /tmp.")
      .only_with("offload", {"file"});
  parallel.add("order", &Part::order, "", "Order of the axes, the fastest varying first.")
      .checked("a permutation of tp-cp-dp-pp", [](const KeyValue& value) -> std::string {
        const auto& order = std::get<std::string>(value);
        const std::string padded = "-" + order + "-";
        for (const char* axis : {"-tp-", "-cp-", "-dp-", "-pp-"})
          if (padded.find(axis) == std::string::npos || order.size() != 11)
            return "expected tp, cp, dp and pp once each, joined by '-'";
        return {};
      });
  parallel.add(
      "transport", &Part::transport, "",
      "Transport of collectives. In host memory: node uses shared memory (all ranks on one "
      "node), and auto uses it where possible. On GPUs: nccl, or staged through host memory "
      "(by mpi, by node, or by the faster of the two); auto uses nccl where possible.");
  parallel.add("share_device", &Part::share_device, "",
               "Allow several ranks to work on one GPU. Their collectives are then staged through "
               "host memory.");
  parallel
      .add("free_sms", &Part::free_sms, "multiprocessors",
           "Multiprocessors of a GPU that matrix products leave free while a collective of NCCL is "
           "in flight, so that the collective need not wait for them. The sums of these products "
           "may have another order. auto: none, until a card was measured.")
      .or_word("auto")
      .at_least(0)
      .at_most(64);
  parallel.add("register_memory", &Part::register_memory, "",
               "Allocate large blocks of GPU memory by NCCL and register them (NCCL 2.19 or newer; "
               "from 2.27 on as windows). Its kernels then use fewer multiprocessors and copy "
               "less. A block takes up to an eighth more memory.");
  parallel
      .add("timeout", &Part::timeout, "seconds",
           "Time limit of a collective. One that takes longer ends the run with exit code 5, and "
           "the message names the ranks.")
      .in_seconds()
      .above(0);
}

namespace {

/// Returns "" for a legal value of checkpoint.init_from, otherwise a description of the fault.
std::string legal_start(const KeyValue& value) {
  const auto* map = std::get_if<TextMap>(&value);
  if (map == nullptr)
    return std::get<std::string>(value).starts_with('{')
               ? "not valid JSON; expected a path, or {PATTERN: PATH}"
               : "";
  if (map->empty()) return "an object without patterns; expected a path, or {PATTERN: PATH}";
  for (const auto& [pattern, path] : *map) {
    if (pattern.empty()) return "an empty pattern, which matches no parameter";
    if (path.empty()) return fmt::format("no path for '{}'", pattern);
  }
  return {};
}

}  // namespace

void add_eval_keys(Table& table) {
  auto eval = table.section("eval", &Deck::eval);
  eval.add("interval", &EvalSection::interval, "steps", "Steps between evaluations. 0: never.")
      .at_least(0);
  eval.add("ema", &EvalSection::ema, "",
           "Evaluate, and write samples, with the average of train.ema instead of the weights: "
           "during training, and in `choir eval`, `generate`, `export`, `transcribe`, `talk` and "
           "`speak` (for which --ema sets it).");
}

void add_service_keys(Table& table) {
  auto checkpoint = table.section("checkpoint", &Deck::checkpoint);
  checkpoint
      .add("interval", &CheckpointSection::interval, "steps",
           "Steps between checkpoints. 0: never, not even at the end. auto: the interval that "
           "minimises the time lost to saves and failures (Young and Daly), from the measured cost "
           "of a save.")
      .at_least(0)
      .or_word("auto", CheckpointSection::kAutoInterval);
  checkpoint
      .add("mtbf", &CheckpointSection::mtbf, "hours",
           "Mean time between failures of the whole job, for checkpoint.interval = auto and for "
           "advice. 0: 1000 hours divided by the number of nodes, at most 24.")
      .at_least(0);
  checkpoint.add(
      "async", &CheckpointSection::async, "",
      "How checkpoints are written. true: the state is copied to host memory and written in "
      "the background; the next update waits for the copy. auto: true where enough host "
      "memory is free, else false. false: training waits until the checkpoint is written.");
  checkpoint
      .add("keep", &CheckpointSection::keep, "checkpoints", "Newest checkpoints to keep. 0: all.")
      .at_least(0);
  checkpoint
      .add("keep_every", &CheckpointSection::keep_every, "steps",
           "Never delete checkpoints at multiples of this number of steps. 0: none are kept for "
           "this reason.")
      .at_least(0);
  checkpoint.add("best", &CheckpointSection::best, "",
                 "Also keep the checkpoint with the lowest validation loss.");
  checkpoint
      .add("resume", &CheckpointSection::resume, "path",
           "Checkpoint to continue from. auto: the newest one in run.dir, if there is one. none: "
           "start from scratch. Otherwise the path of a checkpoint.")
      .checked("auto | none | PATH", [](const KeyValue& value) -> std::string {
        return std::get<std::string>(value).empty() ? "expected auto, none or a path" : "";
      });
  checkpoint
      .add("init_from", &CheckpointSection::init_from, "path",
           "Checkpoint whose parameters a new run starts from; they are matched by name and must "
           "have the same shape, unless init_skip names them. Ignored when the run resumes. Empty: "
           "random initialisation. An "
           "object maps patterns of parameter names to checkpoints: {\"encoder.*\": \"runs/asr\", "
           "\"lm.*\": \"runs/lm\"}. Every parameter that matches a pattern must exist in its "
           "checkpoint, under the same name or without the part of the name before the first "
           "wildcard of the pattern.")
      .checked("PATH, or {PATTERN: PATH}", legal_start);
  checkpoint.add("init_take", &CheckpointSection::init_take, "patterns",
                 "Names of the parameters to take from a single checkpoint.init_from, with * and "
                 "?. Empty: all.");
  checkpoint.add("init_skip", &CheckpointSection::init_skip, "patterns",
                 "Names of parameters to leave out of checkpoint.init_from, with * and ?.");
  checkpoint.add("store_base", &CheckpointSection::store_base, "",
                 "With model.lora, frozen weights that came from checkpoint.init_from are not "
                 "stored again: the checkpoints name the checkpoint that has them, and its "
                 "checksum. true: every checkpoint stores them, so that the base may be deleted.");
  checkpoint
      .add("allow_changes", &CheckpointSection::allow_changes, "keys",
           "Keys of data, model or run.seed that may differ from the checkpoint that a run "
           "continues from, or true to allow all. Any other change of such a key is refused.")
      .or_word(CheckpointSection::kAllowAll)
      .checked("keys, or true", [&table](const KeyValue& value) -> std::string {
        for (const std::string& key : std::get<std::vector<std::string>>(value))
          if (key != CheckpointSection::kAllowAll && table.find(key) == nullptr)
            return fmt::format("'{}' is not a key", key);
        return {};
      });

  auto log = table.section("log", &Deck::log);
  log.add("interval", &LogSection::interval, "steps",
          "Steps between log lines. The first and the last step and every evaluation are always "
          "logged. 0: only these.")
      .at_least(0);
  log.add(
      "style", &LogSection::style, "",
      "Form of the lines of steps on the standard output. full: key=value; on a terminal the "
      "fields that fit its width. compact: the lines of nanoGPT, \"step 250: train loss "
      "1.9640, val loss 2.0123\" and \"iter 250: loss 1.9640, time 123.45ms, mfu 1.23%\" (speech: "
      "also the speed as a multiple of real time). "
      "log.txt has the whole full line in any case.");
  log.add("all_ranks", &LogSection::all_ranks, "",
          "Let every rank write to the terminal, not only rank 0.");
  log.add("verbose", &LogSection::verbose, "",
          "Print all of start.txt (every key, the module tree, the memory plan, the legend) "
          "instead of one screen of it.");
  log.add(
      "tensorboard", &LogSection::tensorboard, "",
      "Also write the numbers of the log lines as TensorBoard events, to tensorboard/ in run.dir.");
  log.add("prometheus", &LogSection::prometheus, "",
          "Also write the numbers of the last log line as text for Prometheus to this file, such "
          "as one in the folder of node_exporter's textfile collector. Empty: none.");
  add_fault_keys(table);
  table.top().add(
      "device", &Deck::device, "",
      "Device that the run uses. auto: cuda if every rank has a GPU and train.precision is "
      "not fp64, else cpu.");
}

void add_watch_keys(Table& table) {
  using Part = WatchSection;
  auto watch = table.section("watch", &Deck::watch);
  watch
      .add(
          "start", &Part::start, "seconds",
          "Time that a phase before the first step may take without progress. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("first_step", &Part::first_step, "seconds",
           "Time that a phase of the first step may take without progress. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("save", &Part::save, "seconds",
           "Time that writing a checkpoint may take. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("evaluation", &Part::evaluation, "seconds",
           "Time that a micro-batch of an evaluation, or a sample, may take. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("still", &Part::still, "seconds",
           "Interval at which a phase that takes longer than this is reported. 0: never.")
      .in_seconds()
      .at_least(0);
  watch
      .add("weights", &Part::weights, "steps",
           "Steps between bitwise comparisons of weights that several ranks hold. If they differ, "
           "the ranks are named and the run exits with code 4. 0: never.")
      .at_least(0);
  watch
      .add("ranks", &Part::ranks, "steps",
           "Steps between reports of the compute time of the ranks and of the slowest rank; they "
           "appear with the next log line. 0: never.")
      .at_least(0);
  watch.add("calls", &Part::calls, "",
            "For debugging: before each collective its ranks compare the calls that they are about "
            "to make, and the first that differs is named. Slow.");
}

}  // namespace choir::deck
