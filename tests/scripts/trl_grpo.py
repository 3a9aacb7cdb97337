"""Reinforcement learning with TRL's GRPO, after its own script grpo.py: the model generates what it is trained on."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config


def share_of_letters(completions, **kwargs):
    """Reward of each completion: the share of its characters that are letters."""
    return [sum(map(str.isalpha, text)) / max(1, len(text)) for text in completions]


if __name__ == "__main__":
    script, training, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    training.model_init_kwargs = {"dtype": model.dtype, "attn_implementation": model.attn_implementation}
    data = load_dataset(script.dataset_name)
    trainer = GRPOTrainer(
        model=model.model_name_or_path,
        args=training,
        reward_funcs=share_of_letters,
        train_dataset=data[script.dataset_train_split],
        peft_config=get_peft_config(model),
    )
    trainer.train()
    trainer.save_model(training.output_dir)
