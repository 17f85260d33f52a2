// Elementwise kernels: each thread works on packs of values, independently of other threads; but for sums over rows of
// what SwiGLU with factors computes.
#include "runtime/cuda/device_code.cuh"

namespace sailor::runtime::cuda {

namespace {

constexpr int elementwise_threads = 256;

/// Calls body(i) for all packs i.
template <class Body>
__global__ void __launch_bounds__(elementwise_threads) for_each(std::int64_t packs, Body body) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += step) body(i);
}

template <class Body>
void run(const Queue& queue, std::int64_t packs, const Body& body) {
  launch(queue, {.grid = looping_grid(queue, rounds_up(packs, elementwise_threads), 16), .block = elementwise_threads},
         for_each<Body>, packs, body);
}

template <class To, class From, int N>
struct Convert {
  To* to;
  const From* from;
  __device__ void operator()(std::int64_t i) const {
    float values[N];
    load(from + i * N, values);
    store(values, to + i * N);
  }
};

template <class T, int N>
struct Add {
  T* to;
  const T* from;
  __device__ void operator()(std::int64_t i) const {
    float values[N];
    float more[N];
    load(to + i * N, values);
    load(from + i * N, more);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] += more[k];
    store(values, to + i * N);
  }
};

template <int N>
struct Scale {
  float* values;
  float factor;
  __device__ void operator()(std::int64_t i) const {
    float scaled[N];
    load(values + i * N, scaled);
#pragma unroll
    for (int k = 0; k < N; ++k) scaled[k] *= factor;
    store(scaled, values + i * N);
  }
};

// gelu(x) = x/2 (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3).
__device__ __forceinline__ float gelu_sigmoid(float x) {
  const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 1.0f / (1.0f + __expf(-2.0f * u));
}

template <PointwiseActivation activation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (activation == PointwiseActivation::relu) return x > 0.0f ? x : 0.0f;
  if constexpr (activation == PointwiseActivation::gelu) return x * gelu_sigmoid(x);
  return x;
}

template <class T, int N, PointwiseActivation activation>
struct FinishLinear {
  const T* product;
  const T* bias;
  T* pre_activation;
  T* output;
  std::int64_t width;
  __device__ void operator()(std::int64_t i) const {
    float values[N];
    load(product + i * N, values);
    if (bias != nullptr) {
      float more[N];
      load(bias + i * N % width, more);
#pragma unroll
      for (int k = 0; k < N; ++k) values[k] += more[k];
    }
    if (pre_activation != nullptr) {
      store(values, pre_activation + i * N);
      load(pre_activation + i * N, values);  // rounded, as the backward pass will see them
    }
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = activate<activation>(values[k]);
    store(values, output + i * N);
  }
};

template <class T, int N>
struct ReluBackward {
  const T* output;
  T* gradient;
  __device__ void operator()(std::int64_t i) const {
    float values[N];
    float slopes[N];
    load(output + i * N, values);
    load(gradient + i * N, slopes);
#pragma unroll
    for (int k = 0; k < N; ++k) slopes[k] = values[k] > 0.0f ? slopes[k] : 0.0f;
    store(slopes, gradient + i * N);
  }
};

template <class T, int N>
struct GeluBackward {
  T* input_to_output;
  T* gradient;
  __device__ void operator()(std::int64_t i) const {
    float values[N];
    float slopes[N];
    load(input_to_output + i * N, values);
    load(gradient + i * N, slopes);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float x = values[k];
      const float slope = 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * x * x);
      const float sigmoid = gelu_sigmoid(x);
      slopes[k] *= sigmoid + 2.0f * x * sigmoid * (1.0f - sigmoid) * slope;
      values[k] = x * sigmoid;
    }
    store(values, input_to_output + i * N);
    store(slopes, gradient + i * N);
  }
};

// silu(x) = x sigmoid(x), with slope sigmoid(x) (1 + x (1 - sigmoid(x))).
template <class T, int N, bool weighted>
struct SwigluForward {
  const T* input;
  const float* factors;
  T* output;
  std::int64_t width;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t row = i * N / width;
    float gate[N];
    float up[N];
    load(input + i * N + row * width, gate);
    load(input + i * N + row * width + width, up);
    const float factor = weighted ? factors[row] : 1.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) gate[k] = gate[k] / (1.0f + __expf(-gate[k])) * up[k] * factor;
    store(gate, output + i * N);
  }
};

/// N gates and, `width` values behind them, as many ups become their gradients, and the gradient of the output the
/// output. Returns the part of these values in the gradient of `factor`.
template <int N, class T>
__device__ __forceinline__ float swiglu_backward_of(T* gates, std::int64_t width, float factor, T* gradient) {
  float gate[N];
  float up[N];
  float slopes[N];
  load(gates, gate);
  load(gates + width, up);
  load(gradient, slopes);
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float x = gate[k];
    const float u = up[k];
    const float sigmoid = 1.0f / (1.0f + __expf(-x));
    const float silu = x * sigmoid;
    sum += slopes[k] * silu * u;
    const float slope = slopes[k] * factor;
    slopes[k] = silu * u * factor;
    up[k] = slope * silu;
    gate[k] = slope * u * sigmoid * (1.0f + x - silu);
  }
  store(gate, gates);
  store(up, gates + width);
  store(slopes, gradient);
  return sum;
}

template <class T, int N>
struct SwigluBackward {
  T* input;
  T* gradient;
  std::int64_t width;
  __device__ void operator()(std::int64_t i) const {
    swiglu_backward_of<N>(input + i * N + i * N / width * width, width, 1.0f, gradient + i * N);
  }
};

// The gradient of a factor is a sum over its row: a block takes a row, in a loop.
template <class T, int N>
__global__ void __launch_bounds__(elementwise_threads)
    weighted_swiglu_backward(T* input, const float* factors, T* gradient, float* factor_gradients, std::int64_t rows,
                             std::int64_t width) {
  float* const scratch = reinterpret_cast<float*>(shared_bytes);  // (2, 32): rows alternate
  int turn = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x, turn = 1 - turn) {
    const float factor = factors[row];
    float sum[1] = {};
    for (std::int64_t column = std::int64_t{threadIdx.x} * N; column < width; column += std::int64_t{blockDim.x} * N)
      sum[0] += swiglu_backward_of<N>(input + row * 2 * width + column, width, factor, gradient + row * width + column);
    block_sums(sum, scratch + turn * warp_size);
    if (threadIdx.x == 0) factor_gradients[row] = sum[0];
  }
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

void convert(const Queue& queue, Values to, ConstValues from, std::int64_t count) {
  with_type(to.type, [&]<class To>(To) {
    with_type(from.type, [&]<class From>(From) {
      // N values, so that the narrower type fills 16 bytes.
      using Narrower = std::conditional_t<(sizeof(To) < sizeof(From)), To, From>;
      with_packs<Narrower>(count, {to.data, from.data}, [&]<int N>(Packed<N>) {
        run(queue, count / N, Convert<To, From, N>{pointer<To>(to), pointer<From>(from)});
      });
    });
  });
}

void add(const Queue& queue, Values to, ConstValues from, std::int64_t count) {
  with_type(to.type, [&]<class T>(T) {
    with_packs<T>(count, {to.data, from.data}, [&]<int N>(Packed<N>) {
      run(queue, count / N, Add<T, N>{pointer<T>(to), pointer<T>(from)});
    });
  });
}

void scale(const Queue& queue, float* values, float factor, std::int64_t count) {
  with_packs<float>(count, {values}, [&]<int N>(Packed<N>) { run(queue, count / N, Scale<N>{values, factor}); });
}

void add_row(const Queue& queue, Values values, ConstValues row, std::int64_t rows, std::int64_t width) {
  finish_linear(queue, values, row, PointwiseActivation::none, nullptr, values, rows, width);
}

void finish_linear(const Queue& queue, ConstValues product, ConstValues bias, PointwiseActivation activation,
                   Values pre_activation, Values output, std::int64_t rows, std::int64_t width) {
  with_type(output.type, [&]<class T>(T) {
    with_packs<T>(width, {product.data, bias.data, pre_activation.data, output.data}, [&]<int N>(Packed<N>) {
      const auto finish = [&]<PointwiseActivation kind>() {
        run(queue, rows * width / N,
            FinishLinear<T, N, kind>{pointer<T>(product), pointer<T>(bias), pointer<T>(pre_activation),
                                     pointer<T>(output), width});
      };
      switch (activation) {
        case PointwiseActivation::none:
          return finish.template operator()<PointwiseActivation::none>();
        case PointwiseActivation::relu:
          return finish.template operator()<PointwiseActivation::relu>();
        case PointwiseActivation::gelu:
          return finish.template operator()<PointwiseActivation::gelu>();
      }
    });
  });
}

void activation_backward(const Queue& queue, PointwiseActivation activation, Values kept_to_output, Values gradient,
                         std::int64_t count) {
  if (activation == PointwiseActivation::none) return;
  with_type(gradient.type, [&]<class T>(T) {
    with_packs<T>(count, {kept_to_output.data, gradient.data}, [&]<int N>(Packed<N>) {
      if (activation == PointwiseActivation::relu)
        run(queue, count / N, ReluBackward<T, N>{pointer<T>(kept_to_output), pointer<T>(gradient)});
      else
        run(queue, count / N, GeluBackward<T, N>{pointer<T>(kept_to_output), pointer<T>(gradient)});
    });
  });
}

void swiglu_forward(const Queue& queue, ConstValues input, const float* factors, Values output, std::int64_t rows,
                    std::int64_t width) {
  with_type(output.type, [&]<class T>(T) {
    with_packs<T>(width, {input.data, output.data}, [&]<int N>(Packed<N>) {
      const auto apply = [&]<bool weighted>() {
        run(queue, rows * width / N,
            SwigluForward<T, N, weighted>{pointer<T>(input), factors, pointer<T>(output), width});
      };
      if (factors != nullptr) return apply.template operator()<true>();
      apply.template operator()<false>();
    });
  });
}

void swiglu_backward(const Queue& queue, Values input_to_gradient, const float* factors, Values gradient_to_output,
                     float* factor_gradients, std::int64_t rows, std::int64_t width) {
  with_type(gradient_to_output.type, [&]<class T>(T) {
    with_packs<T>(width, {input_to_gradient.data, gradient_to_output.data}, [&]<int N>(Packed<N>) {
      T* const input = pointer<T>(input_to_gradient);
      T* const gradient = pointer<T>(gradient_to_output);
      if (factors == nullptr) return run(queue, rows * width / N, SwigluBackward<T, N>{input, gradient, width});
      launch(
          queue,
          {.grid = looping_grid(queue, rows, 8), .block = elementwise_threads, .shared = 2 * warp_size * sizeof(float)},
          weighted_swiglu_backward<T, N>, input, factors, gradient, factor_gradients, rows, width);
    });
  });
}

}  // namespace sailor::runtime::cuda
