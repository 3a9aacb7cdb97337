"""A reward model with TRL's RewardTrainer, after its own script reward_modeling.py: a causal model with one score."""

from datasets import load_dataset
from trl import ModelConfig, RewardConfig, RewardTrainer, ScriptArguments, TrlParser, get_peft_config

if __name__ == "__main__":
    script, training, model = TrlParser((ScriptArguments, RewardConfig, ModelConfig)).parse_args_and_config()
    training.model_init_kwargs = {"dtype": model.dtype, "attn_implementation": model.attn_implementation}
    data = load_dataset(script.dataset_name)
    trainer = RewardTrainer(
        model=model.model_name_or_path,
        args=training,
        train_dataset=data[script.dataset_train_split],
        eval_dataset=data[script.dataset_test_split] if training.eval_strategy != "no" else None,
        peft_config=get_peft_config(model),
    )
    trainer.train()
    trainer.save_model(training.output_dir)
