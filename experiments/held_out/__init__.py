"""Programs on which no rule of the simulator was found, one per module.

Each has `make(**sizes)`, which returns a training step of (state, *batch), a function that makes
the first state, and the abstract batch. docs/evidence/simulator.md names the programs on which a
rule was found afterwards.
"""

PROGRAMS = (
    *("conformer", "graph_attention", "perceiver", "routed_lm", "soft_caps_lm", "ssd_lm"),
    *("two_tower", "wavenet", "codebook", "retrieval_lm", "selective_scan", "shifted_windows"),
    *("capsules", "set_detector", "neural_sde", "radiance_field", "diffusion_transformer"),
    *("long_convolution", "point_cloud", "transducer", "splatting", "image_vae"),
    *("video_encoder", "audio_separator", "fourier_operator"),
    *("recurrent_policy", "speech_codec", "molecule_diffusion"),
    *("pair_folding", "image_flow"),
    *("tensor_products", "retention_lm", "equilibrium", "expert_choice"),
    *("meta_learning", "late_interaction"),
    *("spline_network", "redundancy"),
    *("fourier_mixing", "spectral_filters"),
    *("sparse_autoencoder", "slot_attention", "skipped_vit", "time_mixing", "masked_autoencoder"),
    *("policy_lm", "flow_network", "weight_generator", "contrastive_audio"),
    *("relation_network", "pointer_generator", "knowledge_graph", "winners"),
)
