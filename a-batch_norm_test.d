batch_norm_test.o: test/mpi/train/batch_norm_test.cpp \
 include/choir/checkpoint/collectives.hpp \
 include/choir/comm/communicator.hpp include/choir/core/dtype.hpp \
 include/choir/core/host_device.hpp include/choir/checkpoint/store.hpp \
 include/choir/checkpoint/directory.hpp \
 include/choir/checkpoint/manifest.hpp include/choir/core/tensor.hpp \
 include/choir/core/error.hpp include/choir/checkpoint/open.hpp \
 include/choir/checkpoint/stored_tensor.hpp \
 include/choir/device/device.hpp include/choir/checkpoint/retention.hpp \
 include/choir/train/train_checkpoint.hpp include/choir/nn/parameter.hpp \
 include/choir/comm/layout.hpp include/choir/train/engine.hpp \
 include/choir/comm/mesh.hpp include/choir/comm/watchdog.hpp \
 include/choir/comm/heartbeat_board.hpp \
 include/choir/core/negative_control.hpp \
 include/choir/optim/adamw_optimizer.hpp \
 include/choir/core/memory_plan.hpp include/choir/core/philox.hpp \
 include/choir/ops/step_control.hpp include/choir/optim/element_spans.hpp \
 include/choir/ops/adamw.hpp include/choir/parallel/sharding.hpp \
 include/choir/optim/state_stream.hpp \
 include/choir/parallel/offloaded_state.hpp \
 include/choir/device/offload_memory.hpp include/choir/nn/precision.hpp \
 include/choir/parallel/parameter_storage.hpp \
 include/choir/nn/parameter_set.hpp \
 include/choir/nn/running_statistics.hpp \
 include/choir/parallel/comm_memory.hpp \
 include/choir/optim/gradient_norm.hpp \
 include/choir/optim/lr_schedule.hpp \
 include/choir/parallel/gradient_reducer.hpp \
 include/choir/parallel/parameter_gatherer.hpp \
 include/choir/nn/bucket_hooks.hpp include/choir/parallel/bucket_ring.hpp \
 include/choir/parallel/comm_queue.hpp \
 include/choir/parallel/partial_gradients.hpp \
 include/choir/parallel/pipeline_executor.hpp \
 include/choir/device/arena.hpp include/choir/parallel/schedule.hpp \
 include/choir/parallel/tied_gradients.hpp \
 include/choir/train/model_instance.hpp include/choir/model/gpt.hpp \
 include/choir/model/gpt_config.hpp include/choir/nn/recompute.hpp \
 include/choir/ops/activation.hpp include/choir/ops/attention.hpp \
 include/choir/ops/norm.hpp include/choir/model/model.hpp \
 include/choir/model/batch.hpp include/choir/model/units.hpp \
 include/choir/nn/pass.hpp include/choir/nn/context_axis.hpp \
 include/choir/nn/tensor_axis.hpp include/choir/ops/positions.hpp \
 include/choir/nn/transformer_block.hpp include/choir/nn/feed_forward.hpp \
 include/choir/nn/residual_norm.hpp include/choir/nn/self_attention.hpp \
 include/choir/nn/dropout.hpp include/choir/nn/linear.hpp \
 include/choir/model/make_model.hpp include/choir/model/model_config.hpp \
 include/choir/model/fastconformer_config.hpp \
 include/choir/ops/log_mel.hpp \
 include/choir/parallel/statistics_storage.hpp \
 include/choir/train/pipeline_options.hpp \
 include/choir/train/phase_clock.hpp include/choir/core/clock.hpp \
 include/choir/train/step_slot.hpp include/choir/train/training_work.hpp \
 test/mpi/train/layout_case.hpp test/support/mpi_test.hpp \
 test/unit/train/engine_case.hpp include/choir/device/cpu_device.hpp \
 include/choir/nn/shard.hpp include/choir/train/step_planner.hpp \
 include/choir/train/step_traffic.hpp kernels/ref_element.hpp \
 test/unit/checkpoint/fixtures.hpp test/unit/train/speech_case.hpp \
 include/choir/train/verify_speech.hpp include/choir/model/host_batch.hpp \
 include/choir/train/verify_batches.hpp \
 test/unit/model/fastconformer_case.hpp \
 include/choir/model/fastconformer.hpp \
 include/choir/nn/conformer_block.hpp \
 include/choir/nn/convolution_module.hpp \
 include/choir/nn/channel_norm.hpp \
 include/choir/nn/relative_attention.hpp \
 include/choir/ops/relative_attention.hpp \
 include/choir/ops/stochastic_depth.hpp \
 include/choir/nn/conv_subsampling.hpp
include/choir/checkpoint/collectives.hpp:
include/choir/comm/communicator.hpp:
include/choir/core/dtype.hpp:
include/choir/core/host_device.hpp:
include/choir/checkpoint/store.hpp:
include/choir/checkpoint/directory.hpp:
include/choir/checkpoint/manifest.hpp:
include/choir/core/tensor.hpp:
include/choir/core/error.hpp:
include/choir/checkpoint/open.hpp:
include/choir/checkpoint/stored_tensor.hpp:
include/choir/device/device.hpp:
include/choir/checkpoint/retention.hpp:
include/choir/train/train_checkpoint.hpp:
include/choir/nn/parameter.hpp:
include/choir/comm/layout.hpp:
include/choir/train/engine.hpp:
include/choir/comm/mesh.hpp:
include/choir/comm/watchdog.hpp:
include/choir/comm/heartbeat_board.hpp:
include/choir/core/negative_control.hpp:
include/choir/optim/adamw_optimizer.hpp:
include/choir/core/memory_plan.hpp:
include/choir/core/philox.hpp:
include/choir/ops/step_control.hpp:
include/choir/optim/element_spans.hpp:
include/choir/ops/adamw.hpp:
include/choir/parallel/sharding.hpp:
include/choir/optim/state_stream.hpp:
include/choir/parallel/offloaded_state.hpp:
include/choir/device/offload_memory.hpp:
include/choir/nn/precision.hpp:
include/choir/parallel/parameter_storage.hpp:
include/choir/nn/parameter_set.hpp:
include/choir/nn/running_statistics.hpp:
include/choir/parallel/comm_memory.hpp:
include/choir/optim/gradient_norm.hpp:
include/choir/optim/lr_schedule.hpp:
include/choir/parallel/gradient_reducer.hpp:
include/choir/parallel/parameter_gatherer.hpp:
include/choir/nn/bucket_hooks.hpp:
include/choir/parallel/bucket_ring.hpp:
include/choir/parallel/comm_queue.hpp:
include/choir/parallel/partial_gradients.hpp:
include/choir/parallel/pipeline_executor.hpp:
include/choir/device/arena.hpp:
include/choir/parallel/schedule.hpp:
include/choir/parallel/tied_gradients.hpp:
include/choir/train/model_instance.hpp:
include/choir/model/gpt.hpp:
include/choir/model/gpt_config.hpp:
include/choir/nn/recompute.hpp:
include/choir/ops/activation.hpp:
include/choir/ops/attention.hpp:
include/choir/ops/norm.hpp:
include/choir/model/model.hpp:
include/choir/model/batch.hpp:
include/choir/model/units.hpp:
include/choir/nn/pass.hpp:
include/choir/nn/context_axis.hpp:
include/choir/nn/tensor_axis.hpp:
include/choir/ops/positions.hpp:
include/choir/nn/transformer_block.hpp:
include/choir/nn/feed_forward.hpp:
include/choir/nn/residual_norm.hpp:
include/choir/nn/self_attention.hpp:
include/choir/nn/dropout.hpp:
include/choir/nn/linear.hpp:
include/choir/model/make_model.hpp:
include/choir/model/model_config.hpp:
include/choir/model/fastconformer_config.hpp:
include/choir/ops/log_mel.hpp:
include/choir/parallel/statistics_storage.hpp:
include/choir/train/pipeline_options.hpp:
include/choir/train/phase_clock.hpp:
include/choir/core/clock.hpp:
include/choir/train/step_slot.hpp:
include/choir/train/training_work.hpp:
test/mpi/train/layout_case.hpp:
test/support/mpi_test.hpp:
test/unit/train/engine_case.hpp:
include/choir/device/cpu_device.hpp:
include/choir/nn/shard.hpp:
include/choir/train/step_planner.hpp:
include/choir/train/step_traffic.hpp:
kernels/ref_element.hpp:
test/unit/checkpoint/fixtures.hpp:
test/unit/train/speech_case.hpp:
include/choir/train/verify_speech.hpp:
include/choir/model/host_batch.hpp:
include/choir/train/verify_batches.hpp:
test/unit/model/fastconformer_case.hpp:
include/choir/model/fastconformer.hpp:
include/choir/nn/conformer_block.hpp:
include/choir/nn/convolution_module.hpp:
include/choir/nn/channel_norm.hpp:
include/choir/nn/relative_attention.hpp:
include/choir/ops/relative_attention.hpp:
include/choir/ops/stochastic_depth.hpp:
include/choir/nn/conv_subsampling.hpp:
