#include "deck_tables.hpp"

namespace choir::deck {
void add_optimizer_keys(Table& table) {
  using Part = OptimizerSection;
  auto optimizer = table.section("optimizer", &Deck::optimizer);
  optimizer
      .add("name", &Part::name, "",
           "adamw (Loshchilov & Hutter 2019), or lars (You et al. 2017): momentum, with a learning "
           "rate of its own for every matrix, for very large batches.")
      .one_of({"adamw", "lars"})
      .when_resumed(OnResume::fixed);
  optimizer.add("learning_rate", &Part::learning_rate, "", "Highest learning rate.").above(0);
  optimizer.add("min_lr", &Part::min_lr, "", "Learning rate from optimizer.decay_steps on.")
      .at_least(0);
  optimizer.add("warmup_steps", &Part::warmup_steps, "steps", "Linear rise from 0.").at_least(0);
  optimizer
      .add("decay_steps", &Part::decay_steps, "steps",
           "Step at which the schedule reaches min_lr. 0: train.max_steps.")
      .at_least(0);
  optimizer.add("schedule", &Part::schedule, "", "Learning rate after the warm-up.")
      .one_of({"constant", "cosine", "linear", "inverse_sqrt"});
  optimizer.add("beta1", &Part::beta1, "", "adamw: decay of the first moment.")
      .at_least(0)
      .below(1);
  optimizer.add("beta2", &Part::beta2, "", "adamw: decay of the second moment.")
      .at_least(0)
      .below(1);
  optimizer
      .add("epsilon", &Part::epsilon, "",
           "adamw: added to the root of the second moment; lars: added to the denominator of the "
           "factor that optimizer.trust_coefficient describes. Gradients far below it count as "
           "zero.")
      .above(0);
  optimizer
      .add("weight_decay", &Part::weight_decay, "",
           "On matrices only. adamw: decoupled; lars: added to the gradient, 0.0005 in the paper.")
      .at_least(0);
  optimizer
      .add("momentum", &Part::momentum, "",
           "lars: part of the step before that is added to a step.")
      .at_least(0)
      .below(1);
  optimizer
      .add("trust_coefficient", &Part::trust_coefficient, "",
           "lars: the learning rate of a matrix w with gradient g is multiplied with this * |w| / "
           "(|g| + weight_decay * |w| + epsilon).")
      .above(0);
  optimizer.add("grad_clip", &Part::grad_clip, "", "Largest global gradient norm. 0: no clipping.")
      .at_least(0);
  optimizer
      .add("scale_lr", &Part::scale_lr, "",
           "Multiplies the learning rates by the data-parallel size or its square root.")
      .one_of({"none", "sqrt", "linear"});
  optimizer
      .add("scale", &Part::scale, "factors",
           "Multiplies the learning rate of some parameters, by patterns of their names: "
           "{\"encoder.*\": 0.1}. Their weight decay goes with it.")
      .checked("{PATTERN: FACTOR}, FACTOR > 0", [](const KeyValue& value) -> std::string {
        try {
          rate_factors(std::get<TextMap>(value));
        } catch (const DeckError& error) {
          return error.what();
        }
        return {};
      });
}

void add_train_keys(Table& table) {
  using Part = TrainSection;
  auto train = table.section("train", &Deck::train);
  train
      .add("precision", &Part::precision, "",
           "Of activations and matrix products; gradient sums and moments are fp32 (fp64). -mixed "
           "keeps fp32 master weights, bf16-true rounds updates of its bf16 weights at random.")
      .one_of({"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"});
  train
      .add("loss_scale", &Part::loss_scale, "",
           "fp16-mixed only: factor on the loss, taken out of the gradient again. dynamic: from "
           "65536, doubled after train.loss_scale_window good updates, halved by an overflow.")
      .or_word("dynamic")
      .at_least(0);
  train
      .add("loss_scale_window", &Part::loss_scale_window, "updates",
           "Updates without overflow before a dynamic loss scale is doubled.")
      .at_least(1);
  train.add("cuda_graph", &Part::cuda_graph, "",
            "cuda only: the kernels of a step are recorded once and launched as a whole.");
  train.add(
      "time_products", &Part::time_products, "",
      "cuda only: the first eight ways that cuBLASLt proposes for each matrix product are "
      "timed once at the start, and all ranks take the fastest; kept in RUN/products.json for "
      "when the run goes on. Another run may choose otherwise, so not with "
      "train.reproducible.");
  train
      .add("steps_in_flight", &Part::steps_in_flight, "steps",
           "Steps queued before the result of the first is read; changes no number. auto: 1 on the "
           "cpu, 2 on other devices.")
      .or_word("auto")
      .at_least(0)
      .at_most(8);
  train
      .add("micro_batch_size", &Part::micro_batch_size, "sequences",
           "Per rank and pass. Never changed silently: on n ranks pass a train.micro_batch_size "
           "that divides global_batch_size / n. 0: from the other two; 8 where no global batch is "
           "given.")
      .at_least(0);
  train
      .add("global_batch_size", &Part::global_batch_size, "sequences",
           "Per step over all ranks = micro_batch_size x grad_accum x data-parallel size. 0: from "
           "the other two.")
      .at_least(0);
  train
      .add("grad_accum", &Part::grad_accum, "micro-batches",
           "Passes of each rank per step. 0: from the other two; 1 where one of them is missing.")
      .at_least(0);
  train
      .add("micro_batches", &Part::micro_batches, "micro-batches",
           "Speech: of a step, on all ranks together; each is one of data.batch_duration. Ranks "
           "own equally many, of which some may be empty.")
      .at_least(0)
      .at_most(1 << 20);
  train
      .add("max_steps", &Part::max_steps, "steps",
           "Steps of the whole run, resumed parts included.")
      .at_least(0);
  train.add(
      "reproducible", &Part::reproducible, "",
      "Bitwise the same weights for any split of a step's micro-batches into ranks and passes, "
      "both powers of two.");
  train
      .add("recompute", &Part::recompute, "",
           "What backward computes again instead of keeping it; changes no number. selective: "
           "results of norms and activations; full: every block from its input, with a quarter "
           "more FLOPs.")
      .one_of({"none", "selective", "full"});
  train
      .add("profile", &Part::profile, "steps",
           "Writes the steps k to l as a trace for Perfetto or chrome://tracing; on a GPU they are "
           "also "
           "what `nsys profile --capture-range=cudaProfilerApi` sees. Empty: no trace.")
      .checked("\"k:l\", 1 <= k <= l", [](const KeyValue& value) -> std::string {
        try {
          profile_range(std::get<std::string>(value));
        } catch (const DeckError&) {
          return "expected \"k:l\" with steps 1 <= k <= l, as \"3:5\"";
        }
        return {};
      });
  train.add("freeze", &Part::freeze, "patterns",
            "Names of parameters that are not trained, with * and ?. They cost no gradient, no "
            "moments and no communication.");
  train.add("unfreeze", &Part::unfreeze, "patterns",
            "With train.freeze or model.lora: names of parameters to train nevertheless.");
  train
      .add(
          "frozen_precision", &Part::frozen_precision, "",
          "What parameters that are not trained are kept in: as the masters of the others, or with "
          "bf16-mixed in bf16 alone, 2 bytes each instead of 6; changes no number.")
      .one_of({"master", "bf16"});
  train
      .add("nan_policy", &Part::nan_policy, "",
           "When a loss or gradient is not finite: stop and name the tensors, or skip the update.")
      .one_of({"stop", "skip"});
  train
      .add("nan_skip_limit", &Part::nan_skip_limit, "updates",
           "So many skipped updates in a row stop the run with exit code 4.")
      .at_least(1);
}

}  // namespace choir::deck
