#include "deck_tables.hpp"

namespace choir::deck {
void add_optimizer_keys(Table& table) {
  using Part = OptimizerSection;
  auto optimizer = table.section("optimizer", &Deck::optimizer);
  optimizer
      .add("name", &Part::name, "",
           "Optimizer. adamw: Loshchilov & Hutter 2019. lars: You et al. 2017, momentum with a "
           "separate learning rate for every matrix, for very large batches.")
      .one_of({"adamw", "lars"})
      .when_resumed(OnResume::fixed);
  optimizer.add("learning_rate", &Part::learning_rate, "", "Peak learning rate.").above(0);
  optimizer.add("min_lr", &Part::min_lr, "", "Final learning rate, from optimizer.decay_steps on.")
      .at_least(0);
  optimizer
      .add("warmup_steps", &Part::warmup_steps, "steps",
           "Steps over which the learning rate rises linearly from 0.")
      .at_least(0);
  optimizer
      .add("decay_steps", &Part::decay_steps, "steps",
           "Step at which the schedule reaches min_lr. 0: train.max_steps.")
      .at_least(0);
  optimizer.add("schedule", &Part::schedule, "", "Shape of the learning rate after the warm-up.")
      .one_of({"constant", "cosine", "linear", "inverse_sqrt"});
  optimizer.add("beta1", &Part::beta1, "", "Decay of the first moment (adamw).")
      .at_least(0)
      .below(1);
  optimizer.add("beta2", &Part::beta2, "", "Decay of the second moment (adamw).")
      .at_least(0)
      .below(1);
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
  optimizer
      .add("scale_lr", &Part::scale_lr, "",
           "Scaling of the learning rates by the data-parallel size or its square root.")
      .one_of({"none", "sqrt", "linear"});
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
}

void add_train_keys(Table& table) {
  using Part = TrainSection;
  auto train = table.section("train", &Deck::train);
  train
      .add("precision", &Part::precision, "",
           "Precision of activations and matrix products. Gradient sums and moments are fp32 (with "
           "fp64: fp64). -mixed keeps fp32 master weights; bf16-true updates its bf16 weights with "
           "stochastic rounding.")
      .one_of({"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"});
  train
      .add("loss_scale", &Part::loss_scale, "",
           "Factor on the loss that is removed from the gradients again (fp16-mixed only). "
           "dynamic: starts at 65536, doubles after train.loss_scale_window updates without "
           "overflow and halves after an overflow.")
      .or_word("dynamic")
      .at_least(0);
  train
      .add("loss_scale_window", &Part::loss_scale_window, "updates",
           "Updates without overflow after which a dynamic loss scale is doubled.")
      .at_least(1);
  train.add("cuda_graph", &Part::cuda_graph, "",
            "Record the kernels of a step as a CUDA graph and launch them as a whole (cuda only).");
  train.add("time_products", &Part::time_products, "",
            "Time the first eight algorithms that cuBLASLt proposes for each matrix product once "
            "at the start, and use the fastest on all ranks (cuda only). The choice is kept in "
            "RUN/products.json for resumed runs. Another run may choose differently, so this "
            "excludes train.reproducible.");
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
  train
      .add("recompute", &Part::recompute, "",
           "Values that backward recomputes instead of keeping them in memory. The results do not "
           "change. selective: results of norms and activations. full: every block from its input, "
           "at a quarter more FLOPs.")
      .one_of({"none", "selective", "full"});
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
  train
      .add("frozen_precision", &Part::frozen_precision, "",
           "Precision of parameters that are not trained. master: the same as the master weights "
           "of the others. bf16: with bf16-mixed in bf16 alone, 2 bytes each instead of 6; the "
           "results do not change.")
      .one_of({"master", "bf16"});
  train
      .add("nan_policy", &Part::nan_policy, "",
           "Reaction to a loss or gradient that is not finite. stop: end the run and name the "
           "tensors. skip: skip the update.")
      .one_of({"stop", "skip"});
  train
      .add("nan_skip_limit", &Part::nan_skip_limit, "updates",
           "Number of consecutive skipped updates that stop the run with exit code 4.")
      .at_least(1);
}

}  // namespace choir::deck
