channel_batch_norm.o: src/nn/channel_batch_norm.cpp \
 include/choir/nn/channel_batch_norm.hpp \
 include/choir/nn/channel_norm.hpp include/choir/nn/parameter_set.hpp \
 include/choir/nn/parameter.hpp include/choir/comm/layout.hpp \
 include/choir/core/tensor.hpp include/choir/core/dtype.hpp \
 include/choir/core/host_device.hpp include/choir/core/error.hpp \
 include/choir/nn/precision.hpp include/choir/nn/running_statistics.hpp \
 include/choir/nn/pass.hpp include/choir/core/negative_control.hpp \
 include/choir/device/arena.hpp include/choir/device/device.hpp \
 include/choir/nn/bucket_hooks.hpp include/choir/nn/context_axis.hpp \
 include/choir/comm/communicator.hpp include/choir/nn/tensor_axis.hpp \
 include/choir/ops/positions.hpp include/choir/nn/side_gradient.hpp \
 include/choir/ops/batch_norm.hpp
include/choir/nn/channel_batch_norm.hpp:
include/choir/nn/channel_norm.hpp:
include/choir/nn/parameter_set.hpp:
include/choir/nn/parameter.hpp:
include/choir/comm/layout.hpp:
include/choir/core/tensor.hpp:
include/choir/core/dtype.hpp:
include/choir/core/host_device.hpp:
include/choir/core/error.hpp:
include/choir/nn/precision.hpp:
include/choir/nn/running_statistics.hpp:
include/choir/nn/pass.hpp:
include/choir/core/negative_control.hpp:
include/choir/device/arena.hpp:
include/choir/device/device.hpp:
include/choir/nn/bucket_hooks.hpp:
include/choir/nn/context_axis.hpp:
include/choir/comm/communicator.hpp:
include/choir/nn/tensor_axis.hpp:
include/choir/ops/positions.hpp:
include/choir/nn/side_gradient.hpp:
include/choir/ops/batch_norm.hpp:
