"""Preference optimization with TRL's KTO, after its own script kto.py; it splits pairs into good and bad answers."""

from datasets import load_dataset
from trl import KTOConfig, KTOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config

if __name__ == "__main__":
    script, training, model = TrlParser((ScriptArguments, KTOConfig, ModelConfig)).parse_args_and_config()
    training.model_init_kwargs = {"dtype": model.dtype, "attn_implementation": model.attn_implementation}
    data = load_dataset(script.dataset_name)
    trainer = KTOTrainer(
        model=model.model_name_or_path,
        args=training,
        train_dataset=data[script.dataset_train_split],
        peft_config=get_peft_config(model),
    )
    trainer.train()
    trainer.save_model(training.output_dir)
