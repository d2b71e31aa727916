// Key names of other trainers with advice on our keys, and the refusal of their configuration
// files.

#include "src/deck/foreign_names.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <set>
#include <vector>

#include "src/core/file_kind.hpp"
#include "src/core/hints.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"

namespace choir::deck {
namespace {

constexpr const char* kPrecisions =
    "train.precision (fp64, fp32, bf16-mixed, bf16-true or fp16-mixed)";

// Key names in the recipes that these programs ship with. Advice that contains a blank is a
// sentence.

std::vector<ForeignKey> wordplay_keys() {
  const char* const us = "wordplay";
  return {
      {"use_wandb", "not needed: `choir report RUN --wandb` creates a W&B run afterwards", us},
      {"wandb_project", "not needed: `choir report RUN --wandb` creates a W&B run afterwards", us},
      {"framework", "not needed, there is only one framework", us},
      {"root_path", "not needed: paths are relative to the working directory", us},
  };
}

std::vector<ForeignKey> nemo_keys() {
  const char* const us = "NeMo";
  return {
      {"trainer.logger", "log.tensorboard", us},
      {"enable_checkpointing", "checkpoint.interval (0: never)", us},
      {"use_distributed_sampler", "not needed, data-parallel ranks always read different samples",
       us},
      {"max_epochs", "give steps in train.max_steps", us},
      {"limit_train_batches", "not needed: train.max_steps counts steps, not epochs", us},
      {"num_sanity_val_steps", "use `choir train --check`", us},
      {"strategy", "parallel.tensor, pipeline, context, data and zero", us},
      {"tensor_parallel_size", "parallel.tensor", us},
      {"sync_batchnorm", "not needed, statistics are computed over the whole micro-batch", us},
      {"benchmark", "not needed, no algorithm is chosen by timing", us},
      {"pretrained_llm", "checkpoint.init_from as {\"lm.*\": RUN}, RUN of `choir import`", us},
      {"pretrained_asr", "checkpoint.init_from as {\"encoder.*\": RUN}", us},
      {"pretrained_weights", "checkpoint.init_from", us},
      {"freeze_params", "train.freeze", us},
      {"prevent_freeze_params", "train.unfreeze", us},
      {"prompt_format", "use `choir prepare chat --template`", us},
      {"audio_locator_tag", "not needed, `choir prepare chat` finds the clips", us},
      {"model.lora.r", "model.lora.rank", us},
      {"model.lora.dim", "model.lora.rank", us},
      {"manifest_filepath", "data.train", us},
      {"train_manifest", "data.train", us},
      {"val_manifest", "data.val", us},
      {"validation_manifest", "data.val", us},
      {"test_manifest", "data.val", us},
      {"validation_ds.manifest_filepath", "data.val", us},
      {"model.validation_ds.manifest_filepath", "data.val", us},
      {"test_ds.manifest_filepath", "data.val", us},
      {"model.test_ds.manifest_filepath", "data.val", us},
      {"train_ds.batch_size", "data.batch_duration, in seconds of audio", us},
      {"model.train_ds.batch_size", "data.batch_duration, in seconds of audio", us},
      {"validation_ds.batch_size", "data.batch_duration, in seconds of audio", us},
      {"model.validation_ds.batch_size", "data.batch_duration, in seconds of audio", us},
      {"data.batch_size",
       "data.batch_duration for speech, in seconds of audio; train.micro_batch_size for text", us},
      {"model.decoding.strategy", "use `choir transcribe --beam N`; evaluation decodes greedily",
       us},
      {"decoding.strategy", "use `choir transcribe --beam N`; evaluation decodes greedily", us},
      {"decoding.beam.beam_size", "use `choir transcribe --beam N`", us},
      {"model.decoding.beam.beam_size", "use `choir transcribe --beam N`", us},
      {"model.decoder", "not supported: recognisers have a CTC head, and no RNN-T or AED decoder",
       us},
      {"model.joint", "not supported: recognisers have a CTC head, and no RNN-T decoder", us},
      {"num_buckets", "data.buckets", us},
      {"bucket_duration_bins", "data.bucket_bins", us},
      {"bucket_batch_size", "data.bucket_sizes", us},
      {"num_workers", "not needed; data.prefetch is how many batches are read ahead", us},
      {"shuffle", "not needed, a seeded permutation orders the training data", us},
      {"pin_memory", "not needed", us},
      {"use_lhotse", "not needed, cuts and Shar folders are read as they are", us},
      {"use_bucketing", "data.buckets (1: no bucketing)", us},
      {"bucket_buffer_size", "data.window", us},
      {"shuffle_buffer_size", "not needed, the order is a permutation of all data", us},
      {"max_tps", "data.max_labels_per_second", us},
      {"min_tps", "data.min_labels_per_second", us},
      {"use_multimodal_sampling", "data.batch_tokens counts tokens and frames together", us},
      {"token_equivalent_duration", "not needed, frames are counted as they are", us},
      {"reweight_temperature", "data.temperature", us},
      {"tokenizer.dir",
       "data.labels (char, bpe_256); for a tokenizer that you have, `choir prepare "
       "tokens FOLDER --tokenizer FILE --name NAME` and data.labels=NAME",
       us},
      {"tokenizer.type", "use `choir prepare tokenizer --type`", us},
      {"model.tokenizer.dir",
       "data.labels (char, bpe_256); for a tokenizer that you have, `choir "
       "prepare tokens FOLDER --tokenizer FILE --name NAME` and data.labels=NAME",
       us},
      {"model.tokenizer.type", "use `choir prepare tokenizer --type`", us},
      {"model.preprocessor.features", "model.mels", us},
      {"window_size", "model.window", us},
      {"model.preprocessor.window", "not needed, the window is Hann's; model.window is its length",
       us},
      {"window_stride", "model.hop", us},
      {"normalize", "model.normalise", us},
      {"n_fft", "model.fft", us},
      {"pad_to", "not needed, padding is masked", us},
      {"n_layers", "model.n_layer", us},
      {"d_model", "model.n_embd", us},
      {"feat_in", "model.mels", us},
      {"subsampling_factor", "model.subsampling", us},
      {"subsampling_conv_channels", "model.subsampling_channels", us},
      {"causal_downsampling", "model.causal", us},
      {"ff_expansion_factor", "model.ffn_width, in channels", us},
      {"self_attention_model", "not needed, attention always uses relative positions", us},
      {"n_heads", "model.n_head", us},
      {"att_context_size", "model.left_context and model.right_context", us},
      {"att_context_style", "model.context_style", us},
      {"untie_biases", "not needed, each layer has its own biases", us},
      {"pos_emb_max_len", "not needed, positions are unlimited", us},
      {"conv_kernel_size", "model.conv_kernel", us},
      {"conv_norm_type", "model.conv_norm", us},
      {"conv_context_size", "model.causal", us},
      {"dropout_pre_encoder", "model.dropout", us},
      {"dropout_emb", "model.dropout", us},
      {"dropout_att", "model.dropout", us},
      {"stochastic_depth_drop_prob", "model.stochastic_depth", us},
      {"ctc_reduction", "not needed, losses are divided by all labels of the step", us},
      {"skip_nan_grad", "train.nan_policy", us},
      {"model.optim.name", "optimizer.name", us},
      {"optim.name", "optimizer.name", us},
      {"sched.name", "optimizer.schedule", us},
      {"model.optim.sched.name", "optimizer.schedule", us},
      {"exp_dir", "run.dir", us},
      {"exp_manager.name", "run.name", us},
      {"name", "run.name, or optimizer.name for an optimizer", us},
      {"create_tensorboard_logger", "log.tensorboard", us},
      {"create_checkpoint_callback", "checkpoint.interval (0: never)", us},
      {"create_wandb_logger", "not needed: `choir report RUN --wandb` creates a W&B run afterwards",
       us},
      {"wandb_logger_kwargs", "not needed: `choir report RUN --wandb` creates a W&B run afterwards",
       us},
      {"resume_ignore_no_checkpoint", "not needed: without a checkpoint a run starts from scratch",
       us},
      {"max_time_per_run", "run.walltime", us},
      {"explicit_log_dir", "run.dir", us},
      {"monitor", "not needed, checkpoint.best uses the validation loss", us},
      {"mode", "not needed, checkpoint.best uses the validation loss", us},
      {"always_save_nemo", "use `choir export`", us},
      {"filename", "not needed, checkpoints are named by their step", us},
      {"exp_manager.ema.enable", "not supported: weights have no moving average", us},
      {"exp_manager.ema.decay", "not supported: weights have no moving average", us},
  };
}

std::vector<ForeignKey> bionemo_keys() {
  const char* const us = "BioNeMo";
  return {
      {"restore_from_path", "checkpoint.resume", us},
      {"encoder_seq_length", "model.block_size", us},
      {"init_method_std", "not supported: weights are initialised as in GPT-2", us},
      {"layernorm_epsilon", "model.norm_eps", us},
      {"make_vocab_size_divisible_by",
       "not needed: padding is added where ranks need it, and never stored", us},
      {"activations_checkpoint_granularity", "train.recompute", us},
      {"activations_checkpoint_method", "train.recompute, which applies to all layers", us},
      {"activations_checkpoint_num_layers", "train.recompute, which applies to all layers", us},
      {"gradient_accumulation_fusion", "not needed", us},
      {"megatron_amp_o2", "set train.precision to \"bf16-mixed\"", us},
      {"native_amp_init_scale", "train.loss_scale", us},
      {"native_amp_growth_interval", "train.loss_scale_window", us},
      {"fp16_lm_cross_entropy", "not needed, losses are fp32", us},
      {"use_cpu_initialization", "not needed, weights do not depend on the device", us},
      {"onnx_safe", "not needed", us},
      {"apex_transformer_log_level", "log.verbose", us},
      {"dataset_path", "data.train", us},
      {"data_prefix", "data.train", us},
      {"dataloader_type", "not needed, a seeded permutation orders the training data", us},
      {"constant_steps", "optimizer.decay_steps and optimizer.min_lr", us},
      {"create_early_stopping_callback", "not supported; a file RUN/stop_now ends a run", us},
      {"use_mcore", "not needed", us},
      {"num_steps", "train.max_steps", us},
      {"num_warmup_steps", "optimizer.warmup_steps", us},
      {"cp_size", "parallel.context", us},
      {"tp_size", "parallel.tensor", us},
      {"wandb.project", "not needed: `choir report RUN --wandb` creates a W&B run afterwards", us},
      {"ckpt_dir", "run.dir", us},
      {"save_every_n_steps", "checkpoint.interval", us},
      {"logger.frequency", "log.interval", us},
      {"eps", "optimizer.epsilon", us},
      {"fp8_config.enabled", "not supported: fp8 is not supported; train.precision", us},
      {"use_sequence_packing", "data.pack", us},
      {"reset_position_ids", "data.documents", us},
      {"reset_attention_mask", "data.documents", us},
      {"eod_mask_loss", "data.documents", us},
  };
}

std::vector<ForeignKey> deepspeed_keys() {
  const char* const us = "DeepSpeed";
  return {
      {"steps_per_print", "log.interval", us},
      {"wall_clock_breakdown", "not needed, every log line has the phases", us},
      {"dump_state", "log.verbose", us},
      {"prescale_gradients", "not needed, losses are divided by global counts", us},
      {"gradient_predivide_factor", "not needed, losses are divided by global counts", us},
      {"sparse_gradients", "not supported: gradients are dense", us},
      {"zero_allow_untested_optimizer", "not needed", us},
      {"communication_data_type", "not supported: gradients are summed in fp32", us},
      {"optimizer.type", "optimizer.name", us},
      {"scheduler.type", "optimizer.schedule", us},
      {"warmup_min_lr", "not supported: the warm-up starts at 0", us},
      {"warmup_max_lr", "optimizer.learning_rate", us},
      {"warmup_num_steps", "optimizer.warmup_steps", us},
      {"total_num_steps", "optimizer.decay_steps", us},
      {"fp16.enabled", "set train.precision to \"fp16-mixed\"", us},
      {"bf16.enabled", "set train.precision to \"bf16-mixed\"", us},
      {"initial_scale_power", "train.loss_scale; \"dynamic\" starts at 2^16", us},
      {"hysteresis", "not supported: every overflow halves the loss scale", us},
      {"min_loss_scale", "not supported: the loss scale does not fall below 1", us},
      {"allgather_partitions", "not needed, buckets are blocks of the model", us},
      {"allgather_bucket_size", "not needed, buckets are blocks of the model", us},
      {"reduce_scatter", "not needed, buckets are blocks of the model", us},
      {"reduce_bucket_size", "not needed, buckets are blocks of the model", us},
      {"contiguous_gradients", "not needed, buckets are blocks of the model", us},
      {"round_robin_gradients", "not needed, buckets are blocks of the model", us},
      {"sub_group_size", "not needed, buckets are blocks of the model", us},
      {"stage3_max_live_parameters", "not needed, buckets are blocks of the model", us},
      {"stage3_max_reuse_distance", "not needed, buckets are blocks of the model", us},
      {"stage3_param_persistence_threshold", "not needed, buckets are blocks of the model", us},
      {"overlap_comm", "not needed, reductions start as soon as gradients are ready", us},
      {"offload_optimizer.device",
       "set parallel.offload to \"optimizer\" for cpu, \"file\" for nvme", us},
      {"offload_param.device", "set parallel.offload to \"all\"", us},
      {"offload_param", "set parallel.offload to \"all\"", us},
      {"nvme_path", "parallel.offload_dir", us},
      {"stage3_prefetch_bucket_size", "parallel.zero_prefetch, in buckets", us},
      {"stage3_gather_16bit_weights_on_model_save", "not needed; use `choir export`", us},
      {"zero_hpz_partition_size", "parallel.zero_group", us},
      {"partition_activations", "train.recompute", us},
      {"cpu_checkpointing", "train.recompute", us},
      {"contiguous_memory_optimization", "not needed, activations are in one arena", us},
      {"number_checkpoints", "train.recompute, which applies to all layers", us},
      {"activation_checkpointing.profile", "log.verbose", us},
      {"flops_profiler.enabled", "use `choir bench step`, which counts FLOPs", us},
      {"flops_profiler.profile_step", "use `choir bench step`, which counts FLOPs", us},
      {"flops_profiler.module_depth", "use `choir bench step`, which counts FLOPs", us},
      {"flops_profiler.top_modules", "use `choir bench step`, which counts FLOPs", us},
      {"flops_profiler.detailed", "use `choir bench step`, which counts FLOPs", us},
      {"tensorboard.enabled", "log.tensorboard", us},
      {"output_path", "not needed, the files are in run.dir", us},
      {"job_name", "run.name", us},
      {"wandb.enabled", "not needed: `choir report RUN --wandb` creates a W&B run afterwards", us},
      {"csv_monitor.enabled", "not needed, every number is in metrics.jsonl", us},
      {"aio.block_size", "not needed: parallel.offload = \"file\" uses one thread of its own", us},
      {"aio.queue_depth", "not needed: parallel.offload = \"file\" uses one thread of its own", us},
      {"aio.thread_count", "not needed: parallel.offload = \"file\" uses one thread of its own",
       us},
      {"aio.single_submit", "not needed: parallel.offload = \"file\" uses one thread of its own",
       us},
      {"aio.overlap_events", "not needed: parallel.offload = \"file\" uses one thread of its own",
       us},
      {"autotuning.enabled", "use `choir tune` and `choir plan`", us},
      {"elasticity.enabled", "not needed, runs resume on any number of ranks", us},
      {"data_efficiency.enabled", "not supported", us},
      {"comms_logger.enabled", "use `choir bench collectives`", us},
  };
}

// Abbreviations of the axes, and the names of a layout in Megatron, DeepSpeed and PyTorch.
std::vector<ForeignKey> layout_keys() {
  const char* const mega = "Megatron";
  const char* const speed = "DeepSpeed";
  const char* const torch = "PyTorch";
  const char* const experts = "not supported: models have no experts";
  const char* const recompute = "set train.recompute to \"full\" or \"selective\"";
  return {
      {"tp", "parallel.tensor", mega},
      {"pp", "parallel.pipeline", mega},
      {"dp", "parallel.data", mega},
      {"cp", "parallel.context", mega},
      {"sp", "parallel.sequence", mega},
      {"mp", "parallel.tensor", mega},
      {"ep", experts, mega},
      {"expert", experts, mega},
      {"expert_parallel", experts, mega},
      {"expert_model_parallel_size", experts, mega},
      {"model_parallel", "parallel.tensor", mega},
      {"model_parallel_size", "parallel.tensor", mega},
      {"tensor_parallel", "parallel.tensor", mega},
      {"tensor_model_parallel", "parallel.tensor", mega},
      {"pipeline_parallel", "parallel.pipeline", mega},
      {"pipeline_parallel_size", "parallel.pipeline", mega},
      {"pipeline_model_parallel", "parallel.pipeline", mega},
      {"context_parallel", "parallel.context", mega},
      {"virtual_pipeline_model_parallel_size", "parallel.virtual_stages", mega},
      {"num_layers_per_virtual_pipeline_stage",
       "parallel.virtual_stages is the number of such groups of layers on a rank: model.n_layer / "
       "(parallel.pipeline x layers per group)",
       mega},
      {"recompute_activations", "set train.recompute to \"selective\"", mega},
      {"recompute_method", "not needed; train.recompute applies to all layers", mega},
      {"recompute_num_layers", "not needed; train.recompute applies to all layers", mega},
      {"overlap_grad_reduce", "not needed, reductions start as soon as gradients are ready", mega},
      {"overlap_param_gather", "not needed, parameters are gathered ahead of their use", mega},
      {"tensorboard_dir", "set log.tensorboard to true; its files are in run.dir", mega},
      {"activation_checkpointing", recompute, speed},
      {"activation_checkpoint", recompute, torch},
      {"zero_stage", "parallel.zero", speed},
      {"zero_optimization.stage", "parallel.zero", speed},
      {"zero1", "set parallel.zero to 1", speed},
      {"zero2", "set parallel.zero to 2", speed},
      {"zero3", "set parallel.zero to 3", speed},
      {"offload_optimizer.pin_memory", "not needed, host memory of offloading is pinned", speed},
      {"cpu_offload", "set parallel.offload to \"optimizer\"", torch},
      {"fsdp", "set parallel.zero to 3 (FSDP's FULL_SHARD), 2 (SHARD_GRAD_OP) or 0", torch},
      {"sharding_strategy", "set parallel.zero to 3 (FULL_SHARD), 2 (SHARD_GRAD_OP) or 0", torch},
      {"ddp", "set parallel.zero to 0; ranks that no other axis takes are data-parallel", torch},
  };
}

}  // namespace

std::vector<ForeignKey> foreign_recipes() {
  std::vector<ForeignKey> all;
  for (const auto& some :
       {wordplay_keys(), nemo_keys(), bionemo_keys(), deepspeed_keys(), layout_keys()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

// Names that users of other trainers type first. Advice that contains a blank is a sentence.
std::vector<ForeignKey> foreign_keys() {
  const char* const nano = "nanoGPT";
  const char* const nemo = "NeMo";
  const char* const mega = "Megatron";
  const char* const hf = "Hugging Face";
  const char* const torch = "torchrun";
  const char* const titan = "torchtitan";
  const char* const speed = "DeepSpeed";
  std::vector<ForeignKey> all{
      {"max_iters", "train.max_steps", nano},
      {"gradient_accumulation_steps", "train.grad_accum", nano},
      {"gas", "train.grad_accum", "wordplay"},
      {"batch_size", "train.micro_batch_size", nano},
      {"dtype", kPrecisions, nano},
      {"lr_decay_iters", "optimizer.decay_steps", nano},
      {"warmup_iters", "optimizer.warmup_steps", nano},
      {"decay_lr", "set optimizer.schedule to \"constant\" for false, \"cosine\" for true", nano},
      {"eval_iters", "eval.batches", nano},
      {"device", "device", nano},
      {"eval_interval", "eval.interval", nano},
      {"log_interval", "log.interval", nano},
      {"eval_only", "use `choir eval CHECKPOINT`", nano},
      {"always_save_checkpoint",
       "set checkpoint.interval; every one is saved, and checkpoint.best keeps "
       "the best",
       nano},
      {"init_from", "checkpoint.resume (auto, none or a path)", nano},
      {"resume", "the same command continues a run; checkpoint.resume names another checkpoint",
       "many programs"},
      {"out_dir", "run.dir", nano},
      {"dataset", "data.train", nano},
      {"backend", "parallel.transport", nano},
      {"compile", "not needed, nothing is compiled at run time", nano},
      {"wandb_log", "not needed: `choir report RUN --wandb` creates a W&B run afterwards", nano},
      {"trainer.devices", "not needed, choir takes the ranks mpiexec gives it", nemo},
      {"devices", "not needed, choir takes the ranks mpiexec gives it", nemo},
      {"num_nodes", "not needed, choir takes the ranks mpiexec gives it", nemo},
      {"accumulate_grad_batches", "train.grad_accum", nemo},
      {"val_check_interval", "eval.interval", nemo},
      {"limit_val_batches", "eval.batches", nemo},
      {"log_every_n_steps", "log.interval", nemo},
      {"every_n_train_steps", "checkpoint.interval", nemo},
      {"save_top_k", "checkpoint.keep", nemo},
      {"resume_if_exists", "checkpoint.resume", nemo},
      {"gradient_clip_val", "optimizer.grad_clip", nemo},
      {"accelerator", "device", nemo},
      {"max_time", "run.walltime", nemo},
      {"data_parallel", "parallel.data", nemo},
      {"data_parallel_size", "parallel.data", nemo},
      {"optim.lr", "optimizer.learning_rate", nemo},
      {"betas", "optimizer.beta1 and optimizer.beta2", nemo},
      {"num_layers", "model.n_layer", mega},
      {"hidden_size", "model.n_embd", mega},
      {"num_attention_heads", "model.n_head", mega},
      {"num_query_groups", "model.n_kv_head", mega},
      {"ffn_hidden_size", "model.ffn_width", mega},
      {"seq_length", "model.block_size", mega},
      {"max_position_embeddings", "model.block_size", mega},
      {"hidden_dropout", "model.dropout", mega},
      {"attention_dropout", "model.dropout", mega},
      {"normalization", "model.norm", mega},
      {"norm_epsilon", "model.norm_eps", mega},
      {"position_embedding_type", "model.position", mega},
      {"rotary_base", "model.rope_theta", mega},
      {"rotary_percent", "model.rope_width (features of a head that rotate)", mega},
      {"qk_layernorm", "model.qk_norm", mega},
      {"swiglu", "set model.activation to \"swiglu\"", mega},
      {"disable_bias_linear", "set model.bias to false", mega},
      {"untie_embeddings_and_output_weights", "set model.tied to false", mega},
      {"micro_batch", "train.micro_batch_size", mega},
      {"global_batch", "train.global_batch_size", mega},
      {"train_iters", "train.max_steps", mega},
      {"lr", "optimizer.learning_rate", mega},
      {"lr_decay_style", "optimizer.schedule", mega},
      {"lr_wsd_decay_iters", "optimizer.wsd_decay_steps", mega},
      {"lr_wsd_decay_style", "optimizer.wsd_decay_shape", mega},
      {"lr_warmup_iters", "optimizer.warmup_steps", mega},
      {"adam_beta1", "optimizer.beta1", mega},
      {"adam_beta2", "optimizer.beta2", mega},
      {"exp_avg_dtype", "optimizer.moment_precision", mega},
      {"adam_eps", "optimizer.epsilon", mega},
      {"clip_grad", "optimizer.grad_clip", mega},
      {"data_path", "data.train", mega},
      {"bf16", "set train.precision to \"bf16-mixed\"", mega},
      {"fp16", "set train.precision to \"fp16-mixed\"", mega},
      {"save_interval", "checkpoint.interval", mega},
      {"save", "run.dir", mega},
      {"load", "checkpoint.resume", mega},
      {"tensor_model_parallel_size", "parallel.tensor", mega},
      {"pipeline_model_parallel_size", "parallel.pipeline", mega},
      {"context_parallel_size", "parallel.context", mega},
      {"sequence_parallel", "parallel.sequence", mega},
      {"use_distributed_optimizer", "set parallel.zero to 1", mega},
      {"recompute_granularity", "train.recompute", mega},
      {"distributed_timeout_minutes", "parallel.timeout (seconds)", mega},
      {"exit_duration_in_mins", "run.walltime", mega},
      {"per_device_train_batch_size", "train.micro_batch_size", hf},
      {"num_hidden_layers", "model.n_layer", hf},
      {"num_key_value_heads", "model.n_kv_head", hf},
      {"partial_rotary_factor", "model.rope_width (features of a head that rotate)", hf},
      {"rotary_pct", "model.rope_width (features of a head that rotate)", hf},
      {"use_parallel_residual", "model.parallel_branches", hf},
      {"intermediate_size", "model.ffn_width", hf},
      {"n_positions", "model.block_size", hf},
      {"n_ctx", "model.block_size", hf},
      {"n_inner", "model.ffn_width", hf},
      {"hidden_act", "model.activation", hf},
      {"activation_function", "model.activation", hf},
      {"rms_norm_eps", "model.norm_eps", hf},
      {"layer_norm_epsilon", "model.norm_eps", hf},
      {"tie_word_embeddings", "model.tied", hf},
      {"resid_pdrop", "model.dropout", hf},
      {"embd_pdrop", "model.dropout", hf},
      {"num_train_epochs", "give steps in train.max_steps", hf},
      {"max_grad_norm", "optimizer.grad_clip", hf},
      {"lr_scheduler_type", "optimizer.schedule", hf},
      {"eval_steps", "eval.interval", hf},
      {"save_steps", "checkpoint.interval", hf},
      {"logging_steps", "log.interval", hf},
      {"save_total_limit", "checkpoint.keep", hf},
      {"output_dir", "run.dir", hf},
      {"run_name", "run.name", hf},
      {"resume_from_checkpoint", "checkpoint.resume", hf},
      {"gradient_checkpointing", "train.recompute", hf},
      {"label_smoothing_factor", "train.label_smoothing", hf},
      {"architectures", "this describes a model with weights: use `choir import FOLDER`", hf},
      {"model_type", "this describes a model with weights: use `choir import FOLDER`", hf},
      {"warmup_ratio", "give steps in optimizer.warmup_steps", hf},
      {"dataloader_num_workers", "not needed; data.prefetch is how many batches are read ahead",
       hf},
      {"torch_dtype", kPrecisions, hf},
      {"eval_strategy", "eval.interval in steps", hf},
      {"report_to", "not needed, every number is in metrics.jsonl (log.tensorboard)", hf},
      {"nproc_per_node", "the launcher sets the ranks: jobs/launch -n RANKS -r RANKS_PER_NODE",
       torch},
      {"nnodes", "the launcher sets the ranks: jobs/launch takes all nodes of the job", torch},
      {"nodes", "the launcher sets the ranks: jobs/launch takes all nodes of the job", torch},
      {"ngpus", "the launcher sets the ranks: jobs/launch -n RANKS", "ezpz"},
      {"gpus", "the launcher sets the ranks: jobs/launch -n RANKS, one a GPU", nemo},
      {"world_size", "the launcher sets the ranks: jobs/launch -n RANKS", torch},
      {"master_addr", "not needed, MPI connects the ranks", torch},
      {"master_port", "not needed, MPI connects the ranks", torch},
      {"local_batch_size", "train.micro_batch_size", titan},
      {"seq_len", "model.block_size", titan},
      {"steps", "train.max_steps", titan},
      {"max_norm", "optimizer.grad_clip", titan},
      {"tensor_parallel_degree", "parallel.tensor", titan},
      {"pipeline_parallel_degree", "parallel.pipeline", titan},
      {"context_parallel_degree", "parallel.context", titan},
      {"data_parallel_shard_degree", "set parallel.zero to 3", titan},
      {"train_micro_batch_size_per_gpu", "train.micro_batch_size", speed},
      {"train_batch_size", "train.global_batch_size", speed},
      {"gradient_clipping", "optimizer.grad_clip", speed},
      {"zero_optimization", "parallel.zero", speed},
      {"offload_optimizer", "set parallel.offload to \"optimizer\"", speed},
      {"stage", "parallel.zero", speed},
  };
  const std::vector<ForeignKey> recipes = foreign_recipes();
  all.insert(all.end(), recipes.begin(), recipes.end());
  return all;
}

}  // namespace choir::deck

namespace choir {
namespace {

constexpr std::size_t kMostSettings = 16;  // shown per file
constexpr std::size_t kLongestWord = 32;   // characters of a value that are shown

struct Language {
  const char* ending;
  const char* name;
};
constexpr std::array<Language, 6> kLanguages{{{".py", "Python"},
                                              {".yaml", "YAML"},
                                              {".yml", "YAML"},
                                              {".toml", "TOML"},
                                              {".sh", "a shell script"},
                                              {".cfg", "a configuration of another program"}}};

struct Setting {
  std::string_view name, value;
};

bool is_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

/// Parses the setting in a line: "batch_size = 12  # of sequences", "max_steps: 3", "--num-layers
/// 24 \". Empty if the line has no name or no value.
Setting setting_of(std::string_view line) {
  line = trim(line);
  if (line.starts_with('#')) return {};
  const bool option = line.starts_with("--");
  line.remove_prefix(std::min(line.find_first_not_of("- "), line.size()));
  const auto end =
      static_cast<std::size_t>(std::ranges::find_if_not(line, is_of_name) - line.begin());
  const std::string_view name = line.substr(0, end);
  line = trim(line.substr(end));
  if (line.starts_with('=') || line.starts_with(':'))
    line.remove_prefix(1);
  else if (!option)
    return {};
  line = trim(line.substr(0, std::min(line.find(" #"), line.find(" \\"))));
  while (line.ends_with(',') || line.ends_with('\\')) line = trim(line.substr(0, line.size() - 1));
  if (line.size() >= 2 && (line.front() == '"' || line.front() == '\'') &&
      line.back() == line.front())
    line = line.substr(1, line.size() - 2);
  if (line.empty() || line.starts_with('{') || line.starts_with('(')) return {};
  return {name, line};
}

/// One line "     batch_size = 12            train.micro_batch_size=12" for each known setting of
/// the text.
std::string translation(const KeySet& keys, std::string_view text) {
  std::string lines;
  std::set<std::string, std::less<>> seen;
  for (const std::string& line : split(text, '\n')) {
    const auto [name, value] = setting_of(line);
    if (name.empty() || seen.size() >= kMostSettings || seen.contains(name)) continue;
    std::string ours = foreign_advice(keys, name);
    if (ours.empty()) continue;
    seen.emplace(name);
    if (ours.find(' ') == std::string::npos)
      ours += fmt::format("={}", value.substr(0, kLongestWord));
    lines += fmt::format("\n     {:<36} {}",
                         fmt::format("{} = {}", name, value.substr(0, kLongestWord)), ours);
  }
  return lines;
}

}  // namespace

std::string foreign_advice(const KeySet& keys, std::string_view name) {
  const std::string folded = fold_name(name);
  const std::string last = folded.substr(folded.rfind('.') + 1);
  static const std::vector<ForeignKey> kForeign = deck::foreign_keys();
  for (const ForeignKey& foreign : kForeign)
    if (foreign.name.find('.') != std::string::npos &&
        ("." + folded).ends_with("." + fold_name(foreign.name)))
      return foreign.advice;
  for (const std::string& wanted : {folded, last})
    for (const ForeignKey& foreign : kForeign)
      if (fold_name(foreign.name) == wanted) return foreign.advice;
  return deck::key_by_last_name(keys, last);
}

namespace {

/// Lines of a batch system at the beginning of a job script.
struct BatchSystem {
  const char* mark;
  const char* name;
  const char* submit;
};
constexpr std::array<BatchSystem, 5> kBatchSystems{
    {{"#PBS ", "a job script of PBS", "qsub -v DECK=DECK.json jobs/generic.pbs"},
     {"#SBATCH ", "a job script of SLURM", "sbatch jobs/generic.slurm DECK.json"},
     {"#BSUB ", "a job script of LSF", "jobs/launch build/choir train DECK.json in it"},
     {"#COBALT ", "a job script of Cobalt", "jobs/launch build/choir train DECK.json in it"},
     {"#FLUX", "a job script of Flux", "jobs/launch build/choir train DECK.json in it"}}};

const BatchSystem* batch_system_of(std::string_view text) {
  for (const std::string& line : split(text.substr(0, 16384), '\n'))
    for (const BatchSystem& system : kBatchSystems)
      if (std::string_view(line).starts_with(system.mark)) return &system;
  return nullptr;
}

/// The interpreter of a script, from its first line: "bash"; "" if it has none.
std::string interpreter_of(std::string_view text) {
  if (!text.starts_with("#!")) return {};
  std::string line(trim(text.substr(2, text.find('\n') - 2)));
  std::string program = line.substr(0, line.find(' '));
  program = program.substr(program.rfind('/') + 1);
  if (program == "env" && line.find(' ') != std::string::npos) {
    const std::string rest(trim(std::string_view(line).substr(line.rfind("env") + 3)));
    program = rest.substr(0, rest.find(' '));
  }
  return program;
}

/// True if the first line that says something begins like YAML or TOML ("key: value", "[section]",
/// "key = value"), which no JSON does.
bool has_settings_line(std::string_view text, char sign) {
  for (const std::string& any : split(text.substr(0, 4096), '\n')) {
    const std::string_view line = trim(any);
    if (line.empty() || line.starts_with('#') || line.starts_with("---")) continue;
    const auto end =
        static_cast<std::size_t>(std::ranges::find_if_not(line, is_of_name) - line.begin());
    const std::string_view rest = trim(line.substr(end));
    return end > 0 && !rest.empty() && rest.front() == sign;
  }
  return false;
}

/// The kind of a text that is no JSON, for messages; "" if it is unknown.
std::string language_of(std::string_view text, const std::string& source) {
  const std::string program = interpreter_of(text);
  if (program.starts_with("python")) return "a program in Python";
  if (!program.empty())
    return program.ends_with("sh") ? "a shell script" : "a script for " + program;
  const std::string ending = fold_name(std::filesystem::path(source).extension().string());
  for (const Language& any : kLanguages)
    if (ending == any.ending) return any.name;
  const std::string_view start = trim(text);
  if (start.starts_with("import ") || start.starts_with("from ")) return "a program in Python";
  if (has_settings_line(text, ':')) return "YAML";
  if (has_settings_line(text, '=')) return "a list of settings (Python or TOML)";
  if (start.starts_with('[') && start.substr(0, start.find('\n')).ends_with(']') &&
      start.find('=') != std::string_view::npos && start.find('"') > start.find(']'))
    return "TOML";
  return {};
}

}  // namespace

void refuse_foreign_file(const KeySet& keys, std::string_view text, const std::string& source) {
  // An object of JSON is a deck, whatever the name of its file.
  std::string_view rest = trim(text);
  while (rest.starts_with("//")) rest = trim(rest.substr(std::min(rest.find('\n'), rest.size())));
  if (rest.starts_with('{')) return;
  if (const FileKind kind = file_kind(text.substr(0, kFileKindBytes)); kind != FileKind::unknown)
    throw DeckError(fmt::format("'{}' is {}, and a deck is JSON", source, describe(kind)),
                    "weights of other programs: choir import " + source +
                        "; data are named in a deck (data.train)");
  if (const BatchSystem* system = batch_system_of(text); system != nullptr)
    throw DeckError(
        fmt::format("'{}' is {}, and choir trains from a deck, which is JSON", source,
                    system->name),
        fmt::format("submit a job that names the deck: {}; decks are in inputs/", system->submit));
  const std::string language = language_of(text, source);
  if (language.empty()) return;
  const std::string deck = deck_like(source);
  const std::string start = deck.empty()
                                ? fmt::format("start from a deck of {}/", own_decks_folder())
                                : fmt::format("start from the deck of that name, {},", deck);
  const std::string known = translation(keys, text);
  throw DeckError(
      fmt::format("'{}' is {}, and a deck is JSON", source, language),
      known.empty()
          ? start + (deck.empty() ? ";" : "") + " `choir train --describe` lists every key"
          : start +
                " and set these keys in it or on the command "
                "line (legal values\n     may differ: `choir train --describe`):" +
                known);
}

}  // namespace choir
