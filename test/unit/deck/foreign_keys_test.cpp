// Whole configurations of other programs: there is an explanation for each of their keys.
#include <gtest/gtest.h>

#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "src/deck/foreign_names.hpp"
#include "test/support/families.hpp"

namespace choir {
namespace {

constexpr const char* kWordplay =
    "train.backend train.dtype train.eval_interval train.log_interval train.eval_iters "
    "train.max_iters train.warmup_iters train.init_from train.compile train.seed "
    "train.eval_only train.always_save_checkpoint train.use_wandb train.wandb_project "
    "train.master_port train.framework train.device model.n_layer model.n_head model.n_embd "
    "model.batch_size model.block_size model.activation model.dropout model.bias "
    "model.vocab_size data.dataset data.out_dir data.root_path optimizer.gas optimizer.name "
    "optimizer.learning_rate optimizer.weight_decay optimizer.beta1 optimizer.beta2 "
    "optimizer.grad_clip optimizer.decay_lr optimizer.lr_decay_iters optimizer.min_lr";

constexpr const char* kNemo =
    "name trainer.devices trainer.num_nodes trainer.accelerator trainer.logger "
    "trainer.enable_checkpointing trainer.use_distributed_sampler trainer.max_steps "
    "trainer.max_epochs trainer.max_time trainer.limit_train_batches "
    "trainer.val_check_interval trainer.limit_val_batches trainer.log_every_n_steps "
    "trainer.num_sanity_val_steps trainer.gradient_clip_val trainer.accumulate_grad_batches "
    "trainer.precision trainer.strategy trainer.strategy.tensor_parallel_size "
    "trainer.strategy.data_parallel_size trainer.sync_batchnorm trainer.benchmark "
    "model.optimizer.lr model.optim.name model.optim.lr model.optim.betas "
    "model.optim.weight_decay model.optim.sched.name model.lr_scheduler.warmup_steps "
    "model.lr_scheduler.min_lr model.lr_scheduler.max_steps model.pretrained_llm "
    "model.pretrained_asr model.pretrained_weights model.freeze_params "
    "model.prevent_freeze_params model.prompt_format model.audio_locator_tag model.lora.r "
    "model.lora.dim model.sample_rate model.train_ds.manifest_filepath "
    "model.train_ds.batch_size model.train_ds.batch_duration "
    "model.train_ds.quadratic_duration model.train_ds.num_buckets "
    "model.train_ds.bucket_duration_bins model.train_ds.bucket_batch_size "
    "model.train_ds.num_workers model.train_ds.shuffle model.train_ds.pin_memory "
    "model.train_ds.input_cfg model.train_ds.use_lhotse model.train_ds.min_duration "
    "model.train_ds.max_duration model.train_ds.seed model.train_ds.shard_seed "
    "model.train_ds.batch_tokens model.train_ds.use_bucketing "
    "model.train_ds.bucket_buffer_size model.train_ds.shuffle_buffer_size "
    "model.train_ds.max_tps model.train_ds.min_tps model.train_ds.use_multimodal_sampling "
    "model.train_ds.token_equivalent_duration model.train_ds.reweight_temperature "
    "model.tokenizer.dir model.tokenizer.type model.preprocessor.features "
    "model.preprocessor.window_size model.preprocessor.window_stride "
    "model.preprocessor.window model.preprocessor.normalize model.preprocessor.n_fft "
    "model.preprocessor.dither model.preprocessor.pad_to model.spec_augment.freq_masks "
    "model.spec_augment.time_masks model.spec_augment.freq_width "
    "model.spec_augment.time_width model.encoder.n_layers model.encoder.d_model "
    "model.encoder.feat_in model.encoder.subsampling model.encoder.subsampling_factor "
    "model.encoder.subsampling_conv_channels model.encoder.causal_downsampling "
    "model.encoder.ff_expansion_factor model.encoder.self_attention_model "
    "model.encoder.n_heads model.encoder.att_context_size model.encoder.att_context_style "
    "model.encoder.xscaling model.encoder.untie_biases model.encoder.pos_emb_max_len "
    "model.encoder.conv_kernel_size model.encoder.conv_norm_type "
    "model.encoder.conv_context_size model.encoder.dropout model.encoder.dropout_pre_encoder "
    "model.encoder.dropout_emb model.encoder.dropout_att "
    "model.encoder.stochastic_depth_drop_prob model.ctc_reduction model.skip_nan_grad "
    "exp_manager.exp_dir exp_manager.name exp_manager.create_tensorboard_logger "
    "exp_manager.create_checkpoint_callback exp_manager.create_wandb_logger "
    "exp_manager.wandb_logger_kwargs exp_manager.resume_if_exists "
    "exp_manager.resume_ignore_no_checkpoint exp_manager.max_time_per_run "
    "exp_manager.explicit_log_dir exp_manager.checkpoint_callback_params.save_top_k "
    "exp_manager.checkpoint_callback_params.monitor "
    "exp_manager.checkpoint_callback_params.mode "
    "exp_manager.checkpoint_callback_params.every_n_train_steps "
    "exp_manager.checkpoint_callback_params.always_save_nemo "
    "exp_manager.checkpoint_callback_params.filename exp_manager.ema.enable "
    "exp_manager.ema.decay";

constexpr const char* kBioNemo =
    "restore_from_path trainer.devices trainer.num_nodes trainer.precision trainer.max_steps "
    "trainer.val_check_interval model.tensor_model_parallel_size "
    "model.pipeline_model_parallel_size model.micro_batch_size model.global_batch_size "
    "model.seq_length model.encoder_seq_length model.max_position_embeddings "
    "model.num_layers model.hidden_size model.ffn_hidden_size model.num_attention_heads "
    "model.init_method_std model.hidden_dropout model.attention_dropout "
    "model.layernorm_epsilon model.make_vocab_size_divisible_by "
    "model.activations_checkpoint_granularity model.activations_checkpoint_method "
    "model.activations_checkpoint_num_layers model.sequence_parallel "
    "model.gradient_accumulation_fusion model.megatron_amp_O2 model.native_amp_init_scale "
    "model.native_amp_growth_interval model.fp16_lm_cross_entropy model.seed "
    "model.use_cpu_initialization model.onnx_safe model.apex_transformer_log_level "
    "model.data.dataset_path model.data.data_prefix model.data.num_workers "
    "model.data.dataloader_type model.optim.name model.optim.lr model.optim.weight_decay "
    "model.optim.betas model.optim.sched.warmup_steps model.optim.sched.constant_steps "
    "model.optim.sched.min_lr create_early_stopping_callback use_mcore num_steps "
    "num_warmup_steps cp_size tp_size dataset.micro_batch_size wandb.project "
    "checkpoint.ckpt_dir checkpoint.save_every_n_steps checkpoint.resume_from_checkpoint "
    "logger.frequency adamw_kwargs.lr adamw_kwargs.betas adamw_kwargs.eps "
    "adamw_kwargs.weight_decay fp8_config.enabled use_sequence_packing";

constexpr const char* kDeepSpeed =
    "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
    "gradient_clipping steps_per_print wall_clock_breakdown dump_state prescale_gradients "
    "gradient_predivide_factor sparse_gradients zero_allow_untested_optimizer "
    "communication_data_type optimizer.type optimizer.params.lr optimizer.params.betas "
    "optimizer.params.eps optimizer.params.weight_decay scheduler.type "
    "scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr "
    "scheduler.params.warmup_num_steps scheduler.params.total_num_steps fp16.enabled "
    "fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis "
    "fp16.min_loss_scale bf16.enabled zero_optimization.stage "
    "zero_optimization.allgather_partitions zero_optimization.allgather_bucket_size "
    "zero_optimization.overlap_comm zero_optimization.reduce_scatter "
    "zero_optimization.reduce_bucket_size zero_optimization.contiguous_gradients "
    "zero_optimization.offload_optimizer.device "
    "zero_optimization.offload_optimizer.pin_memory "
    "zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.device "
    "zero_optimization.sub_group_size zero_optimization.stage3_max_live_parameters "
    "zero_optimization.stage3_max_reuse_distance "
    "zero_optimization.stage3_prefetch_bucket_size "
    "zero_optimization.stage3_param_persistence_threshold "
    "zero_optimization.stage3_gather_16bit_weights_on_model_save "
    "zero_optimization.round_robin_gradients zero_hpz_partition_size "
    "activation_checkpointing.partition_activations "
    "activation_checkpointing.cpu_checkpointing "
    "activation_checkpointing.contiguous_memory_optimization "
    "activation_checkpointing.number_checkpoints activation_checkpointing.profile "
    "flops_profiler.enabled flops_profiler.profile_step flops_profiler.module_depth "
    "flops_profiler.top_modules flops_profiler.detailed tensorboard.enabled "
    "tensorboard.output_path tensorboard.job_name wandb.enabled wandb.project "
    "csv_monitor.enabled aio.block_size aio.queue_depth aio.thread_count aio.single_submit "
    "aio.overlap_events autotuning.enabled elasticity.enabled data_efficiency.enabled "
    "comms_logger.enabled";

TEST(ForeignKeys, EveryKeyOfTheirRecipesIsAnswered) {
  for (const char* recipe : {kWordplay, kNemo, kBioNemo, kDeepSpeed})
    for (const std::string& key : split(recipe, ' ')) {
      const std::string advice = foreign_advice(test::families().keys(), key);
      EXPECT_FALSE(advice.empty()) << key;
      if (!advice.empty() && advice.find(' ') == std::string::npos) {
        EXPECT_TRUE(test::families().keys().find(advice) != nullptr) << key << ": " << advice;
      }
    }
  EXPECT_EQ(foreign_advice(test::families().keys(), "model.flux_capacitor"), "");
}

// A key of ours with the same last name must not be suggested for a different key of theirs.
TEST(ForeignKeys, WholePathsGoBeforeLastNames) {
  EXPECT_EQ(foreign_advice(test::families().keys(), "zero_optimization.offload_optimizer.device"),
            "set parallel.offload to \"optimizer\" for cpu, \"file\" for nvme; "
            "parallel.offload_gradients moves gradients, too");
  EXPECT_EQ(foreign_advice(test::families().keys(), "optimizer.type"), "optimizer.name");
  EXPECT_EQ(foreign_advice(test::families().keys(), "scheduler.type"), "optimizer.schedule");
  EXPECT_NE(foreign_advice(test::families().keys(), "aio.block_size"), "model.block_size");
  EXPECT_NE(foreign_advice(test::families().keys(), "exp_manager.ema.enable"), "fault.enable");
}

}  // namespace
}  // namespace choir
